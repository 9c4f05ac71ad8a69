"""``trainer rehearse``: a preset for GPUs, on a CPU, with everything but its sizes as it is.

Kept are the dtype, strategy, stage, checkpointing, reference, engine and update rule; shrunken are the model's
width and depth, the lengths and the batch. A random model knows no answers: it reads generated puzzles, and its
completions are scored by a count of letters.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from trainer.config.extends import preset_specs
from trainer.config.schema import TrainConfig, apply_overrides, load_config, save_config
from trainer.errors import ConfigError, EngineError
from trainer.planning.memory import size_text
from trainer.policy.architectures import KNOWN, TINY_FOLDER, model_size
from trainer.shell.arguments import add_json, count
from trainer.shell.table import print_table

_RANKS = 2
RANK_MODULE = "trainer.commands.rehearsal_rank"
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
_LEAK_BYTES = 1 << 20  # less than a microbatch keeps: what evaluations and metrics may leave behind


@dataclass(frozen=True)
class Rehearsal:
    """Measurements of one configuration on all its ranks."""

    name: str
    config: TrainConfig  # shrunken
    ranks: Sequence[Mapping[str, Any]]  # a `Measured` each

    def worst(self, key: str) -> float:
        """The largest value of any rank; 0 where there is none."""
        return max((rank[key] for rank in self.ranks if rank[key] is not None), default=0.0)

    def checks(self) -> dict[str, bool]:
        """Each property that a run relies on, and whether it holds."""
        engine = max(self.worst("engine_short"), self.worst("engine_long"))
        return {
            "reference": self.worst("reference") == 0.0,
            "engine": engine <= ENGINE_BOUND[self.config.model.dtype],
            "ratio": self.worst("ratio") == 0.0,
            "memory": all(rank["held_bytes"][-1] - rank["held_bytes"][-2] <= _LEAK_BYTES for rank in self.ranks),
            "resume": all(self._same_step(rank) for rank in self.ranks),
        }

    def _same_step(self, rank: Mapping[str, Any]) -> bool:
        """Whether the resumed run took the same step: to the bit, but for attention's backward pass on a GPU."""
        tolerance = _REORDERED if self.config.parallel.device == "cuda" else 0.0
        pairs = zip(rank["resumed"], rank["not_resumed"], strict=True)
        close = all(abs(again - first) <= tolerance * max(1.0, abs(first)) for again, first in pairs)
        return close and rank["resumed_at"] == 2 and rank["resumed"][1] > 0

    def as_json(self) -> dict[str, Any]:
        """The rehearsal as JSON values."""
        return {"name": self.name, "checks": self.checks(), "ranks": list(self.ranks)}

    def row(self) -> dict[str, str]:
        """A line of the table."""
        config, checks, parallel = self.config, self.checks(), self.config.parallel
        stage = f" {parallel.zero_stage}" if parallel.strategy == "deepspeed" else ""
        offload = f", {parallel.offload} offloaded" if parallel.offload != "none" else ""
        without = all(rank["reference"] is None for rank in self.ranks)
        held = max(rank["held_bytes"][-1] for rank in self.ranks)

        def cell(check: str, text: str) -> str:
            return text if checks[check] else f"{text} FAILED"

        return {
            "preset": self.name,
            "ranks": f"{len(self.ranks)} {parallel.strategy}{stage}{offload}",
            "computed": f"{config.model.dtype}, stored {self.ranks[0]['stored']}",
            "engine": self.ranks[0]["engine"],
            "rule": f"{config.algorithm.advantage.name}, {config.algorithm.loss.name}",
            "reference": cell("reference", "none" if without else f"{self.worst('reference'):g}"),
            "short | long": cell("engine", f"{self.worst('engine_short'):.4f} | {self.worst('engine_long'):.4f}"),
            "ratio - 1": cell("ratio", f"{self.worst('ratio'):g}"),
            "held": cell("memory", size_text(held)),
            "resumed": cell("resume", "same step" if checks["resume"] else "another step"),
        }


def add_rehearse(parser: argparse.ArgumentParser) -> None:
    """``trainer rehearse``."""
    parser.add_argument("spec", nargs="?", help="preset[:variant] or YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. parallel.zero_stage=3")
    parser.add_argument("--all", action="store_true", help="rehearse every preset and variant")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    parser.add_argument("--ranks", type=count, default=_RANKS, help=f"number of ranks (default: {_RANKS})")
    add_json(parser)
    parser.set_defaults(command=_rehearse)


def _rehearse(arguments: argparse.Namespace) -> int:
    if arguments.all == bool(arguments.spec):
        raise ConfigError("which preset?", "trainer rehearse", "name one, or give --all")
    names = preset_specs() if arguments.all else [arguments.spec]
    configs = {name: load_config(name, arguments.overrides) for name in names}
    engine, said = _pick_engine()
    print(f"{len(names)} configuration{'s' if len(names) > 1 else ''}; {said}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="loptune-rehearsal-") as folder:
        found = rehearse(configs, Path(folder), engine, arguments.device, arguments.ranks)
    if arguments.json:
        print(json.dumps([one.as_json() for one in found], indent=2))
    else:
        rows = [one.row() for one in found]
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    return 0 if all(all(one.checks().values()) for one in found) else 1


def _pick_engine() -> tuple[str, str]:
    """The engine in vLLM's place where a preset leaves the choice, and a sentence about it."""
    if importlib.util.find_spec("vllm") is not None:
        return "vllm", "presets that sample with vLLM do so here"
    return "transformers", "vLLM is not installed here: the transformers engine stands in for it"


def rehearse(
    configs: Mapping[str, TrainConfig],
    folder: Path,
    engine: str = "transformers",
    device: Literal["cpu", "cuda"] = "cpu",
    ranks: int = _RANKS,
) -> list[Rehearsal]:
    """Rehearse configurations one after another: in one process, and those of several ranks in two.

    ``engine`` samples where a preset leaves the choice; on GPUs each of the ``ranks`` takes one.

    Raises:
        EngineError: a rank ended before its time; names its log.
    """
    folder = folder.resolve()
    with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed's remarks when transformers first asks for it
        small = {
            name: shrunken(config, make_model(config, folder / f"model-{number}"), engine, device)
            for number, (name, config) in enumerate(configs.items())
        }
    alone = [name for name, config in small.items() if config.parallel.strategy == "none"]
    together = [name for name in small if name not in alone]
    found = {}
    for case, (names, size) in {"alone": (alone, 1), "together": (together, ranks)}.items():
        jobs = folder / case
        jobs.mkdir()
        for number, name in enumerate(names):
            save_config(small[name], jobs / f"case-{number:03d}.yaml")
        measured = _run_ranks(jobs, size, names, device == "cuda") if names else []
        for number, name in enumerate(names):
            found[name] = Rehearsal(name, small[name], [rank[f"case-{number:03d}"] for rank in measured])
    return [found[name] for name in configs]


def shrunken(config: TrainConfig, model: Path, engine: str, device: str = "cpu") -> TrainConfig:
    """The configuration with small sizes and generated puzzles, in the dtype of a GPU."""
    puzzles = {"source": "generated", "people": [2, 3]}
    updates = 2 if config.rollout.prompts_per_step * config.rollout.group_size > config.optim.update_batch_size else 1
    attention = config.model.attn_implementation
    return apply_overrides(
        config,
        {
            "model.name_or_path": str(model),
            "model.revision": None,
            "model.dtype": "bfloat16" if config.model.dtype == "auto" else config.model.dtype,
            "model.attn_implementation": attention if attention in ("sdpa", "eager") else "sdpa",
            "data.task": "knights_knaves",
            "data.train": [{**puzzles, "split": "train", "size": 20}],
            "data.prompt_format": "raw",
            "data.prompt_template": None,
            "data.max_prompt_tokens": 160,
            "reward.functions": {f"trainer.commands.rehearsal_reward:share_of_{letter}": 1.0 for letter in "eo"},
            "reward.workers": 1,
            "reward.overlong_buffer": min(config.reward.overlong_buffer, 8),
            "rollout.engine": engine if config.rollout.engine != "transformers" else "transformers",
            "rollout.prompts_per_step": 4,
            "rollout.group_size": 4,
            "rollout.max_new_tokens": 40,
            "rollout.vllm.mode": "colocate",
            "rollout.vllm.tensor_parallel": 1,
            "rollout.vllm.max_model_len": 2100,
            "optim.update_batch_size": 16 // updates,
            "optim.tokens_per_microbatch": 640,
            "parallel.device": device,
            "evaluation.every_steps": 1,
            "evaluation.at_start": True,
            "evaluation.completions_per_problem": 1,
            "evaluation.pass_at_k": None,
            "evaluation.sets": {"dev": {**puzzles, "split": "dev", "size": 4}},
            "checkpoint.every_steps": 1,
            "tracking.offline": True,
            "max_steps": 3,
        },
    )


def make_model(config: TrainConfig, folder: Path) -> Path:
    """A small random model of the configuration's architecture, with the built-in tiny model's tokenizer."""
    transformers.utils.logging.disable_progress_bar()
    size = model_size(config.model.name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(TINY_FOLDER)
    settings = size.settings if size else KNOWN["Qwen/Qwen2.5-7B"].settings()
    ends = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    torch.manual_seed(config.seed)
    shape = AutoConfig.for_model(**{**settings, **_WIDTHS, **ends, "pad_token_id": tokenizer.pad_token_id})
    AutoModelForCausalLM.from_config(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _run_ranks(folder: Path, size: int, names: Sequence[str], on_gpus: bool) -> list[dict[str, Any]]:
    logs = folder / "logs"
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(size), "--redirects", "3"]
    command = [sys.executable, "-m", *launcher, "--log-dir", str(logs), "-m", RANK_MODULE, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({} if on_gpus else {"CUDA_VISIBLE_DEVICES": ""})
    launcher_log = folder / "torchrun.log"
    with launcher_log.open("w") as log:
        torchrun = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        _follow(torchrun, folder, names)
    finally:
        torchrun.terminate()  # it ends its ranks
        code = torchrun.wait()
    if code != 0:
        raise EngineError(*_failure(logs, launcher_log))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]


def _follow(torchrun: subprocess.Popen[bytes], folder: Path, names: Sequence[str]) -> None:
    """Wait, and print a line for each configuration that the first rank has gone through."""
    started = time.monotonic()
    shown = 0
    running = True
    while running:
        running = torchrun.poll() is None
        for name in names[shown : len(list(folder.glob("*.done")))]:
            shown += 1
            seconds = time.monotonic() - started
            print(f"{name} rehearsed: {shown} of {len(names)}, {seconds:.0f} s", file=sys.stderr, flush=True)
        time.sleep(0.2)


def _failure(logs: Path, launcher_log: Path) -> tuple[str, str]:
    """Return what ended a rehearsal and its log: the first error of a rank, or the launcher's where none says."""
    errors = sorted(logs.glob("*/attempt_0/*/error.json"), key=lambda path: path.stat().st_mtime)
    if errors:
        message = json.loads(errors[0].read_text())["message"]["message"]
        return f"rank {errors[0].parent.name} of a rehearsal failed: {message}", str(errors[0].with_name("stderr.log"))
    ended = re.findall(r"rank +: (\d+).*\n +exitcode +: (-?\d+)", launcher_log.read_text(errors="replace"))
    ranks = ", ".join(f"rank {rank} ended with code {code}" for rank, code in ended) or "the launcher failed"
    return f"a rehearsal failed: {ranks}", str(launcher_log)
