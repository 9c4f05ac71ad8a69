"""Implementation of ``trainer evaluate``: sample, score, print and record."""

import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewards.sandbox import MAX_FAILURE_RATE
from trainer.checkpoint.files import damaged_files, intact_checkpoints
from trainer.config.schema import TrainConfig
from trainer.errors import MissingError, StorageError
from trainer.evaluation.evaluate import EvaluationResult, completion_rows, evaluate
from trainer.evaluation.table import Row, evaluation_rows
from trainer.parallel.models import load_frozen
from trainer.parallel.ranks import Parallel
from trainer.parallel.start import make_parallel
from trainer.rollouts.build import build_engine
from trainer.rollouts.prepared import Prepared, prepare
from trainer.run_folder import RunFolder
from trainer.shell.table import print_table
from trainer.tracking.mlflow_store import prepare_store, tracking_uri
from trainer.tracking.tracker import NullTracker, Tracker
from trainer.types import RunContext

_STEP = re.compile(r"step-(\d+)")
EXPERIMENT = "evaluate"
_WIDTH = 160  # columns
_HEADINGS = (
    *("set", "part", "problems", "completions each", "accuracy", "95% interval", "pass@k"),
    *("length", "truncated", "unparsed", "timeouts", "errors"),
)


@dataclass(frozen=True)
class FoundModel:
    """A model folder or Hub name, with the run's config file and the training step (0 if
    unknown).
    """

    name_or_path: str
    run_config: Path | None
    step: int


def find_model(model: str) -> FoundModel:
    """Resolve ``tiny``, a Hub name, a model folder, a checkpoint, or a run (its newest intact
    checkpoint).

    Raises:
        MissingError: a run without an intact checkpoint.
        StorageError: the checkpoint is damaged.
    """
    folder = Path(model).expanduser()
    if RunFolder(folder).config.is_file() and not (folder / "config.json").is_file():
        newest = next(intact_checkpoints(RunFolder(folder).checkpoints), None)
        if newest is None:
            raise MissingError(
                f"run {folder.name} has no intact checkpoint", str(folder), "train it first"
            )
        folder = newest
    step = _STEP.fullmatch(folder.name)
    if step is None or not folder.is_dir():
        return FoundModel(model, None, 0)
    damaged = damaged_files(folder)
    if damaged:
        raise StorageError(
            f"the checkpoint is damaged: {', '.join(damaged)}",
            str(folder),
            "evaluate another step of the run",
        )
    config = RunFolder(folder.parent.parent).config
    return FoundModel(str(folder), config if config.is_file() else None, int(step[1]))


def run_evaluation(
    config: TrainConfig, model: FoundModel, name: str, runs_dir: Path, as_json: bool
) -> int:
    """Evaluate the model, print the results, record them in ``runs_dir/name`` and MLflow, and
    return the exit code.

    Under torchrun the problems are split over the ranks.

    Raises:
        RewardError: scoring failed too often for a valid result.
    """
    parallel = make_parallel(config)
    # load the reward first: an unknown reward must not leave a record
    with prepare(config, trains=False, max_failure_rate=MAX_FAILURE_RATE) as prepared:
        tracker = _open_tracker(config, name, runs_dir) if parallel.is_main else NullTracker()
        status = "FAILED"
        started = time.monotonic()
        try:
            result = _evaluate_model(config, prepared, parallel)
            if parallel.is_main:
                rows = evaluation_rows(result)
                summary = _summary(config, model, rows, time.monotonic() - started)
                file = RunFolder(runs_dir / name).evaluation
                _record(tracker, result, summary, file)
                if as_json:
                    print(json.dumps(summary, indent=2))
                else:
                    print_rows(rows)
                    print(f"results: {file}")
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            tracker.close(status)
    return 0


def _open_tracker(config: TrainConfig, name: str, runs_dir: Path) -> Any:
    if not config.tracking.offline:
        # the store is only created in an existing folder
        runs_dir.mkdir(parents=True, exist_ok=True)
        prepare_store(tracking_uri(config.tracking, runs_dir))
    tags = {"loptune.run": name, "loptune.model": config.model.name_or_path}
    return Tracker(config, RunContext(runs_dir / name, runs_dir, EXPERIMENT, name, tags))


def _evaluate_model(
    config: TrainConfig, prepared: Prepared, parallel: Parallel
) -> EvaluationResult:
    policy = load_frozen(config, parallel.device)
    engine = build_engine(config, policy, prepared.tokenizer)
    try:
        engine.sync_weights(policy)
        for name, problems in prepared.sets.items() if parallel.is_main else ():
            count = len(problems) * config.evaluation.of_set(name).completions_per_problem
            print(f"{name}: {len(problems)} problems, {count} completions", file=sys.stderr)
        return evaluate(
            engine, prepared.tokenizer, prepared.rewards, prepared.sets, config, parallel
        )
    finally:
        engine.close()


def _summary(
    config: TrainConfig, model: FoundModel, rows: Sequence[Row], seconds: float
) -> dict[str, Any]:
    evaluation = config.evaluation
    first = evaluation.of_set(next(iter(evaluation.sets)))
    return {
        "model": config.model.name_or_path,
        "step": model.step,
        "temperature": first.temperature,
        "completions_per_problem": first.completions_per_problem,
        "k": rows[0]["k"],
        "seed": config.seed,
        "seconds": seconds,
        "rows": rows,
    }


def _record(tracker: Any, result: EvaluationResult, summary: dict[str, Any], file: Path) -> None:
    first = summary["rows"][0]
    bounds = {"eval/accuracy_low": first["low"], "eval/accuracy_high": first["high"]}
    tracker.log(result.metrics | bounds, summary["step"])
    for name, rollouts in result.rollouts.items():
        tracker.log_completions(completion_rows({name: rollouts}, len(rollouts)), summary["step"])
    file.write_text(json.dumps(summary, indent=2) + "\n", "utf-8")


def print_rows(rows: Sequence[Row]) -> None:
    """Print the results table, at most 160 columns wide outside of a terminal."""
    cells = [
        [
            row["set"] if row["by"] == "all" else "",
            "all" if row["by"] == "all" else f"{row['by']} {row['value'] or 'none'}",
            row["problems"],
            row["k"],
            f"{row['accuracy']:.3f}",
            f"{row['low']:.3f} .. {row['high']:.3f}",
            f"{row['pass_at_k']:.3f} @{row['k']}" if "pass_at_k" in row else "-",
            f"{row['completion_length']:.1f}",
            *(f"{row[share]:.1%}" for share in ("truncated", "unparsed", "timeouts", "errors")),
        ]
        for row in rows
    ]
    print_table(_HEADINGS, cells, _WIDTH)
