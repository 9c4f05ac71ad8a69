"""Rehearse a preset for GPUs at reduced size, with all other settings unchanged.

A rehearsal keeps dtype, strategy, ZeRO stage, checkpointing, reference, engine and update rule. It
shrinks the model's width and depth, the sequence lengths and the batch. The model is random and
cannot solve problems: it reads generated puzzles, and completions are scored by counting letters.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import Literal

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from loptune.errors import EngineError
from loptune.yaml_document import read_yaml
from trainer.config.schema import TrainConfig, apply_overrides, save_config
from trainer.policy.architectures import KNOWN, TINY_FOLDER, model_size
from trainer.run_folder import RunFolder

_SHRUNKEN = Path(__file__).with_name("small.yaml")
RANK_MODULE = "trainer.rehearsal.rank"
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
# Two correct implementations differ by the rounding of logits: a fraction of 2 ** -9 in bfloat16.
ENGINE_BOUND = {"bfloat16": 0.05, "float32": 1e-4}
# relative tolerance of loss and gradient norm, because attention on a GPU sums in no fixed order
_REORDERED = 0.02


@dataclass(frozen=True)
class Rehearsal:
    """Measurements of one configuration on all its ranks."""

    name: str
    config: TrainConfig  # shrunken
    ranks: Sequence[Mapping[str, float]]  # see `rank.measure`

    def bounds(self) -> dict[str, float]:
        """Return the largest allowed distance of each measurement from its required value."""
        engine = ENGINE_BOUND[self.config.model.dtype]
        resumed = _REORDERED if self.config.parallel.device == "cuda" else 0.0
        bounds = {"short": engine, "long": engine, "resumed": resumed}
        return {"reference": 0.0, "ratio - 1": 0.0, **bounds}

    def failed(self) -> list[str]:
        """Return the names of measurements out of bounds; NaN is out of bounds."""
        failed = []
        for name, bound in self.bounds().items():
            in_bounds = all(rank[name] <= bound for rank in self.ranks)
            if not in_bounds:
                failed.append(name)
        return failed

    def row(self) -> dict[str, str]:
        """Return this rehearsal's row of the table."""
        parallel = self.config.parallel
        ranks = f"{len(self.ranks)} {parallel.strategy}"
        if parallel.strategy == "deepspeed":
            ranks += f" {parallel.zero_stage}"
        if parallel.offload != "none":
            ranks += f", {parallel.offload} offloaded"
        row = {"preset": self.name, "ranks": ranks}
        failed = self.failed()
        for name in self.bounds():
            worst = max(rank[name] for rank in self.ranks)
            row[name] = f"{worst:.3g}"
            if name in failed:
                row[name] += " FAILED"
        return row


def rehearse(
    configs: Mapping[str, TrainConfig],
    folder: Path,
    engine: str = "transformers",
    device: Literal["cpu", "cuda"] = "cpu",
    ranks: int = 2,
) -> Iterator[Rehearsal]:
    """Rehearse configurations sequentially; configurations with a parallel strategy run on
    several ranks.

    Args:
        configs: configurations by name.
        folder: folder of the models and checkpoints, several MB each.
        engine: rollout engine, unless a preset requires transformers.
        device: ``cpu`` or ``cuda``, where each rank uses its own GPU.
        ranks: number of ranks of a configuration with a strategy.

    Raises:
        EngineError: a rank failed; the output of all ranks has been printed to stderr.
    """
    for number, (name, config) in enumerate(configs.items()):
        place = folder.resolve() / str(number)
        # DeepSpeed prints messages when transformers first checks for it
        with contextlib.redirect_stdout(sys.stderr):
            small = shrunken(config, make_model(config, place / "model"), engine, device)
        size = 1 if small.parallel.strategy == "none" else ranks
        save_config(small, RunFolder(place).config)
        run_ranks(place, size, name, device == "cuda")
        measured = [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(size)]
        yield Rehearsal(name, small, measured)


def shrunken(config: TrainConfig, model: Path, engine: str, device: str = "cpu") -> TrainConfig:
    """Return the configuration with small sizes, generated puzzles and the model in the folder
    ``model``. ``dtype: auto`` becomes bfloat16, as on a GPU. The rollout engine is ``engine``,
    unless the configuration requires transformers.
    """
    rollout = config.rollout
    attention = config.model.attn_implementation
    if device == "cpu" and attention not in ("sdpa", "eager"):
        attention = "sdpa"
    dtype = config.model.dtype
    if dtype == "auto":
        dtype = "bfloat16"
    if rollout.engine == "transformers":
        engine = "transformers"
    several_updates = rollout.prompts_per_step * rollout.group_size > config.optim.update_batch_size
    return apply_overrides(
        config,
        {
            **read_yaml(_SHRUNKEN).data,
            "model.name_or_path": str(model),
            "model.dtype": dtype,
            "model.attn_implementation": attention,
            "reward.overlong_buffer": min(config.reward.overlong_buffer, 8),
            "rollout.engine": engine,
            "optim.update_batch_size": 8 if several_updates else 16,
            "parallel.device": device,
        },
    )


def make_model(config: TrainConfig, folder: Path) -> Path:
    """Save a small random model of the configuration's architecture, or of Qwen2.5's if it is not
    known on this machine, with the tiny model's tokenizer; return its folder.
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


def run_ranks(folder: Path, size: int, name: str, on_gpus: bool) -> None:
    """Rehearse the preset ``name`` on ``size`` ranks in ``folder``; without ``on_gpus``, GPUs are
    hidden from them.

    Raises:
        EngineError: a rank failed; the output of all ranks has been printed to stderr.
    """
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    # `-m` puts the current folder first on sys.path. The ranks start in the rehearsal's own folder,
    # so that a user's file such as trainer.py does not shadow our package.
    command = [sys.executable, "-m", *launcher, "-m", RANK_MODULE, str(folder), str(Path.cwd())]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": _python_path()}
    if not on_gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    with Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
        errors="replace",
    ) as torchrun:
        try:
            written, _ = torchrun.communicate()
        finally:
            torchrun.terminate()  # torchrun then stops its ranks
    if torchrun.returncode != 0:
        print(written, file=sys.stderr)
        raise EngineError(
            f"the rehearsal of {name} failed",
            f"torchrun exited with status {torchrun.returncode}",
            "read the output of its ranks above",
            code="rank-failed",
        )


def _python_path() -> str:
    """Return PYTHONPATH for a process in another folder: the root of this package, then the
    entries of this process's PYTHONPATH as absolute paths.
    """
    root = Path(__file__).resolve().parents[2]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(root), *(os.path.abspath(entry) for entry in given if entry)])
