"""``python -m benchmarks.rehearsal``: a preset for GPUs, on a CPU, with everything but its sizes
as it is.

Kept are the dtype, strategy, stage, checkpointing, reference, engine and update rule; shrunken are
the model's width and depth, the lengths and the batch. A random model knows no answers: it reads
generated puzzles, and its completions are scored by a count of letters.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Literal

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from trainer.config.extends import preset_specs
from trainer.config.schema import TrainConfig, apply_overrides, load_config, save_config
from trainer.config.yaml_document import read_yaml
from trainer.errors import ConfigError, EngineError
from trainer.parallel.device import local_device
from trainer.policy.architectures import KNOWN, TINY_FOLDER, model_size
from trainer.run_folder import RunFolder
from trainer.shell.arguments import count
from trainer.shell.table import print_table

_RANKS = 2
_ROOT = Path(__file__).resolve().parents[2]  # of this checkout
_SHRUNKEN = Path(__file__).with_name("small.yaml")
RANK_MODULE = "benchmarks.rehearsal.rank"
_WIDTHS = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,  # large, so that distributions are peaked
}
# Two correct implementations differ by the rounding of logits: 2 ** -9 of them in bfloat16.
ENGINE_BOUND = {"bfloat16": 0.05, "float32": 1e-4}
_REORDERED = 0.02  # of loss and gradient norm, whose sums a GPU's attention adds in any order


@dataclass(frozen=True)
class Rehearsal:
    """Measurements of one configuration on all its ranks."""

    name: str
    config: TrainConfig  # shrunken
    ranks: Sequence[Mapping[str, float]]  # see `rank.measure`

    def bounds(self) -> dict[str, float]:
        """Return how far each may be."""
        engine = ENGINE_BOUND[self.config.model.dtype]
        resumed = _REORDERED if self.config.parallel.device == "cuda" else 0.0
        bounds = {"short": engine, "long": engine, "resumed": resumed}
        return {"reference": 0.0, "ratio - 1": 0.0, **bounds}

    def failed(self) -> list[str]:
        """Return what does not hold; what is not a number is out of bounds, too."""
        return [
            name
            for name, bound in self.bounds().items()
            if not all(rank[name] <= bound for rank in self.ranks)
        ]

    def row(self) -> dict[str, str]:
        """Return a line of the table."""
        parallel = self.config.parallel
        failed = self.failed()
        stage = f" {parallel.zero_stage}" if parallel.strategy == "deepspeed" else ""
        offload = f", {parallel.offload} offloaded" if parallel.offload != "none" else ""
        worst = {name: max(rank[name] for rank in self.ranks) for name in self.bounds()}
        cells = {
            name: f"{value:.3g}{' FAILED' if name in failed else ''}"
            for name, value in worst.items()
        }
        return {
            "preset": self.name,
            "ranks": f"{len(self.ranks)} {parallel.strategy}{stage}{offload}",
            **cells,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the preset, the device and the ranks."""
    parser.add_argument("spec", nargs="?", help="preset[:variant] or YAML file")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="e.g. parallel.zero_stage=3"
    )
    parser.add_argument("--all", action="store_true", help="rehearse every preset and variant")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    parser.add_argument(
        "--ranks", type=count, default=_RANKS, help=f"number of ranks (default: {_RANKS})"
    )


def carry_out(arguments: argparse.Namespace) -> int:
    """Rehearse what was asked for, print a table, and return whether anything failed."""
    if arguments.all == bool(arguments.spec):
        raise ConfigError("which preset?", "benchmarks.rehearsal", "name one, or give --all")
    local_device(arguments.device)  # whether it is there
    names = preset_specs() if arguments.all else [arguments.spec]
    configs = {name: load_config(name, arguments.overrides) for name in names}
    engine = "vllm" if importlib.util.find_spec("vllm") else "transformers"
    print(f"presets that sample with vLLM do so here by {engine}", file=sys.stderr)
    rehearsals = []
    with tempfile.TemporaryDirectory(prefix="loptune-rehearsal-") as folder:
        for rehearsal in rehearse(configs, Path(folder), engine, arguments.device, arguments.ranks):
            rehearsals.append(rehearsal)
            print(f"{rehearsal.name} rehearsed: {len(rehearsals)} of {len(names)}", file=sys.stderr)
    rows = [rehearsal.row() for rehearsal in rehearsals]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    return int(any(rehearsal.failed() for rehearsal in rehearsals))


def rehearse(
    configs: Mapping[str, TrainConfig],
    folder: Path,
    engine: str = "transformers",
    device: Literal["cpu", "cuda"] = "cpu",
    ranks: int = _RANKS,
) -> Iterator[Rehearsal]:
    """Rehearse configurations one after another, those with a strategy on several ranks.

    ``engine`` samples where a preset leaves the choice; on GPUs each of the ``ranks`` takes one.

    Raises:
        EngineError: a rank ended before its time; what the ranks wrote has been printed.
    """
    for number, (name, config) in enumerate(configs.items()):
        place = folder.resolve() / str(number)
        # DeepSpeed's remarks when transformers first asks for it
        with contextlib.redirect_stdout(sys.stderr):
            small = shrunken(config, make_model(config, place / "model"), engine, device)
        size = 1 if small.parallel.strategy == "none" else ranks
        save_config(small, RunFolder(place).config)
        _run_ranks(place, size, name, device == "cuda")
        measured = [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(size)]
        yield Rehearsal(name, small, measured)


def shrunken(config: TrainConfig, model: Path, engine: str, device: str = "cpu") -> TrainConfig:
    """Return the configuration with small sizes and generated puzzles, in the dtype of a GPU."""
    rollout = config.rollout
    attention = config.model.attn_implementation
    several = rollout.prompts_per_step * rollout.group_size > config.optim.update_batch_size
    return apply_overrides(
        config,
        {
            **read_yaml(_SHRUNKEN).data,
            "model.name_or_path": str(model),
            "model.dtype": "bfloat16" if config.model.dtype == "auto" else config.model.dtype,
            "model.attn_implementation": attention if attention in ("sdpa", "eager") else "sdpa",
            "reward.overlong_buffer": min(config.reward.overlong_buffer, 8),
            "rollout.engine": engine if rollout.engine != "transformers" else rollout.engine,
            "optim.update_batch_size": 8 if several else 16,
            "parallel.device": device,
        },
    )


def make_model(config: TrainConfig, folder: Path) -> Path:
    """Save a small random model of the configuration's architecture, with the tiny model's
    tokenizer; return where.
    """
    transformers.utils.logging.disable_progress_bar()
    size = model_size(config.model.name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(TINY_FOLDER)
    settings = (size or KNOWN["Qwen/Qwen2.5-7B"]).settings
    ends = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    torch.manual_seed(config.seed)
    shape = AutoConfig.for_model(
        **{**settings, **_WIDTHS, **ends, "pad_token_id": tokenizer.pad_token_id}
    )
    AutoModelForCausalLM.from_config(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _run_ranks(folder: Path, size: int, name: str, on_gpus: bool) -> None:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    command = [sys.executable, "-m", *launcher, "-m", RANK_MODULE, str(folder)]
    environment = (
        os.environ | {"OMP_NUM_THREADS": "1"} | ({} if on_gpus else {"CUDA_VISIBLE_DEVICES": ""})
    )
    with Popen(
        command, cwd=_ROOT, env=environment, stdout=PIPE, stderr=STDOUT, text=True, errors="replace"
    ) as torchrun:
        try:
            written, _ = torchrun.communicate()
        finally:
            torchrun.terminate()  # it ends its ranks
    if torchrun.returncode != 0:
        print(written, file=sys.stderr)
        raise EngineError(
            f"the rehearsal of {name} failed",
            "benchmarks.rehearsal",
            "see above what its ranks wrote",
        )
