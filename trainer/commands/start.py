"""``trainer run`` and ``trainer resume`` up to the training: the name, the folder, and what is refused."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint import raise_if_ended, start_over, steps_on_disk
from trainer.commands.run_folder import check_name, hold, remove_start, resume_command
from trainer.config.advice import advise
from trainer.config.extends import find_spec
from trainer.config.schema import TrainConfig, dotted_keys, load_config, save_config, value_of
from trainer.config.variants import rule_name, variant_name
from trainer.errors import INTERRUPTED, ConfigError

CONFIG_FILE = "config.yaml"

# What may differ between a run and its resumption without making it another run.
_RESUMABLE = (
    "max_steps",
    "epochs",
    "tracking",
    "checkpoint.keep_last",
    "checkpoint.keep_best",
    "rollout.vllm.server",
)
# What a start writes before there is anything to lose.
_START_FILES = (CONFIG_FILE, "lock", "metrics.jsonl", "completions.jsonl", "correctness.jsonl", "tracking.json")


@dataclass(frozen=True)
class Start:
    """What was asked for on the command line."""

    spec: str  # preset name or YAML file, with or without :VARIANT
    overrides: Sequence[str] | Mapping[str, Any]
    runs_dir: Path
    name: str | None = None  # the spec's name and the time if None; of a resumption the folder of the spec
    resume: bool = False
    start_over: bool = False  # resume from step 0


def start_run(start: Start) -> int:
    """Train, and return the exit code. A start that fails before the first record leaves no folder.

    Raises:
        ConfigError: the configuration, the name, or a resumption that would be another run.
        UserError: whatever keeps the run from going on.
    """
    config = load_config(start.spec, start.overrides)
    name = _name(start)
    if rank() > 0:  # the first rank checks, holds and writes the run's folder
        return _train(config, name, start)
    run_dir = start.runs_dir / name
    _check_folder(config, run_dir, start)
    new_runs_dir, new_run = not start.runs_dir.exists(), not run_dir.exists()
    try:
        with hold(run_dir):
            if start.start_over:
                _start_over(run_dir)
            save_config(config, run_dir / CONFIG_FILE)
            print(
                f"{'resuming' if start.resume else 'run'} {name}: {config.model.name_or_path}, {rule_of(config)}",
                flush=True,
            )
            for advice in advise(config):
                print(advice, file=sys.stderr, flush=True)
            return _train(config, name, start)
    except KeyboardInterrupt:
        if _has_history(run_dir):
            raise
        print("stopped before the first record: nothing was saved", flush=True)
        return INTERRUPTED
    finally:
        if new_run and not _has_history(run_dir):
            remove_start(run_dir, _START_FILES, start.runs_dir if new_runs_dir else None)


def saved_run(runs_dir: Path, name: str) -> Path:
    """The configuration of a run that was started before.

    Raises:
        ConfigError: there is none; names those there are.
    """
    saved = runs_dir / check_name(name) / CONFIG_FILE
    if not saved.is_file():
        raise ConfigError(f"no run {name} to resume", str(saved), "see `trainer ls`, or start it: trainer run")
    return saved


def rule_of(config: TrainConfig) -> str:
    """The update rule of a run in words: ``grpo + AR``."""
    algorithm = config.algorithm
    return variant_name(
        rule_name(algorithm.advantage, algorithm.loss),
        algorithm.ar_alpha,
        algorithm.lopti_eta,
        algorithm.token_filter,
        algorithm.lopti_split,
        algorithm.lopti_order,
    )


def rank() -> int:
    """The number of this process among those of the run."""
    return int(os.environ.get("RANK", "0"))


def _name(start: Start) -> str:
    file = find_spec(start.spec)
    path = file.path
    in_run_folder = path.name == CONFIG_FILE and path.parent.parent.resolve() == start.runs_dir.resolve()
    if start.start_over and not start.resume:
        raise ConfigError("--start-over goes with --resume", "--start-over", "add --resume")
    if start.name is None and start.resume and not in_run_folder:
        raise ConfigError("--resume needs the run's name", "--resume", "add --name NAME, or: trainer resume NAME")
    default = path.parent.name if start.resume else f"{file.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return check_name(start.name or default)


def _check_folder(config: TrainConfig, run_dir: Path, start: Start) -> None:
    if start.resume:
        _check_same_run(config, load_config(str(saved_run(start.runs_dir, run_dir.name))))
        for step in steps_on_disk(run_dir / "checkpoints")[:1] if not start.start_over else ():
            raise_if_ended(run_dir / "checkpoints" / f"step-{step}")
    elif _has_history(run_dir):
        again = resume_command(run_dir.name, start.runs_dir)
        raise ConfigError(f"run {run_dir.name} exists", str(run_dir), f"{again}, or give another --name")


def _check_same_run(config: TrainConfig, saved: TrainConfig) -> None:
    for key in dotted_keys():
        if not key.startswith(_RESUMABLE) and value_of(config, key) != value_of(saved, key):
            raise ConfigError(
                f"{key} is {value_of(config, key)!r}, but the run was started with {value_of(saved, key)!r}",
                key,
                "resume with the run's own config.yaml, or start another run with --name",
            )


def _has_history(run_dir: Path) -> bool:
    # A start that was refused leaves a configuration and nothing to lose.
    metrics = run_dir / "metrics.jsonl"
    return (metrics.is_file() and metrics.stat().st_size > 0) or (run_dir / "checkpoints").is_dir()


def _start_over(run_dir: Path) -> None:
    earlier = start_over(run_dir)
    if earlier is not None:
        print(f"starting over; checkpoints and record so far: {earlier}", flush=True)


def _train(config: TrainConfig, name: str, start: Start) -> int:
    from trainer.commands.run import report_outcome, run_training  # torch takes seconds to import

    return report_outcome(run_training(config, name, start.runs_dir, resume=start.resume))
