"""Implementation of ``trainer evaluate``: sample, score, print and record."""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loptune.terminal.lasting_output import lasting_output
from loptune.terminal.main import rank
from loptune.terminal.table import print_table
from rewards.sandbox import MAX_FAILURE_RATE
from trainer.config.schema import TrainConfig
from trainer.evaluation.breakdown import EvaluationRow, evaluation_rows
from trainer.evaluation.checkpoint_mean import mean_rows
from trainer.evaluation.evaluate import EvaluationResult, completion_rows, evaluate
from trainer.parallel.models import load_policy_for_inference
from trainer.parallel.ranks import Parallel
from trainer.parallel.strategy import make_parallel
from trainer.rollouts.build import build_engine
from trainer.rollouts.prepared import RunInputs, prepare
from trainer.run_folder import RunFolder
from trainer.tracking.mlflow_store import prepare_store, tracking_uri
from trainer.tracking.tracker import NullTracker, Tracker
from trainer.types import RunContext

_logger = logging.getLogger(__name__)

EXPERIMENT = "evaluate"
_WIDTH = 160  # columns
_HEADINGS = (
    *("set", "part", "problems", "completions each", "accuracy", "95% interval", "pass@k"),
    *("length", "truncated", "unparsed", "timeouts", "errors"),
)


@dataclass(frozen=True)
class _Evaluation:
    config: TrainConfig
    step: int  # training step of the model, 0 if unknown
    record: str  # name of the folder and the MLflow run


@lasting_output()
def run_evaluations(
    configs: Sequence[TrainConfig],
    steps: Sequence[int],
    records: Sequence[str],
    mean: str | None,
    runs_dir: Path,
    as_json: bool,
) -> int:
    """Evaluate one model, or the checkpoints of a run; print and record the results, and return the
    exit code. Under torchrun the problems are split over the ranks.

    Args:
        configs: one configuration per model.
        steps: training step of each model, 0 if unknown.
        records: for each model the name of its folder in ``runs_dir`` and of its MLflow run.
        mean: name under which the mean over the models is recorded; None for one model.
        runs_dir: the runs folder.
        as_json: print JSON.

    Raises:
        RewardError: scoring failed too often for a valid result.
    """
    evaluations = list(map(_Evaluation, configs, steps, records))
    if mean is None:
        summary = _run(evaluations[0], runs_dir)
        if rank() == 0:
            _print(summary, RunFolder(runs_dir / records[0]).evaluation, as_json)
        return 0
    for evaluation in evaluations:
        _logger.info("checkpoint of step %d", evaluation.step)
        _run(evaluation, runs_dir)
    if rank() == 0:
        _report_mean(mean, evaluations, runs_dir, as_json)
    return 0


def _run(evaluation: _Evaluation, runs_dir: Path) -> dict[str, Any]:
    """Run and record one evaluation. Return its summary, which is empty on ranks other than 0."""
    config = evaluation.config
    name = evaluation.record
    parallel = make_parallel(config)
    # load the reward first: an unknown reward must not leave a record
    with prepare(config, trains=False, max_failure_rate=MAX_FAILURE_RATE) as prepared:
        tracker = _open_tracker(config, name, runs_dir) if parallel.is_main else NullTracker()
        status = "FAILED"
        started = time.monotonic()
        summary: dict[str, Any] = {}
        try:
            result = _evaluate_model(config, prepared, parallel)
            if parallel.is_main:
                rows = evaluation_rows(result)
                summary = _summary(config, evaluation.step, rows, time.monotonic() - started)
                _record(tracker, result, summary, RunFolder(runs_dir / name).evaluation)
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            tracker.close(status)
    return summary


def _report_mean(
    name: str, evaluations: Sequence[_Evaluation], runs_dir: Path, as_json: bool
) -> None:
    """Print and record the mean over recorded evaluations."""
    steps = [evaluation.step for evaluation in evaluations]
    summaries = []
    for evaluation in evaluations:
        recorded = RunFolder(runs_dir / evaluation.record).evaluation
        summaries.append(json.loads(recorded.read_text("utf-8")))
    rows = mean_rows([summary["rows"] for summary in summaries])
    mean = {**summaries[-1], "step": None, "steps": steps, "rows": rows}
    mean["seconds"] = sum(summary["seconds"] for summary in summaries)
    file = RunFolder(runs_dir / name).evaluation
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(mean, indent=2) + "\n", "utf-8")
    if not as_json:
        print(f"mean over the checkpoints of steps {', '.join(map(str, steps))}:")
    _print(mean, file, as_json)


def _print(summary: dict[str, Any], file: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        print_rows(summary["rows"])
        print(f"results: {file}")


def _open_tracker(config: TrainConfig, name: str, runs_dir: Path) -> Any:
    if not config.tracking.offline:
        # MLflow creates its store only in an existing folder
        runs_dir.mkdir(parents=True, exist_ok=True)
        prepare_store(tracking_uri(config.tracking, runs_dir))
    tags = {"loptune.model": config.model.name_or_path}
    return Tracker(config, RunContext(runs_dir / name, runs_dir, EXPERIMENT, name, tags))


def _evaluate_model(
    config: TrainConfig, prepared: RunInputs, parallel: Parallel
) -> EvaluationResult:
    if parallel.is_main:
        _announce(config, prepared)
    policy = load_policy_for_inference(config, parallel.device)
    engine = build_engine(config, policy, prepared.tokenizer)
    try:
        engine.sync_weights(policy)
        return evaluate(
            engine, prepared.tokenizer, prepared.set_rewards, prepared.sets, config, parallel
        )
    finally:
        engine.close()


def _announce(config: TrainConfig, prepared: RunInputs) -> None:
    for name, problems in prepared.sets.items():
        count = len(problems) * config.evaluation.of_set(name).completions_per_problem
        _logger.info("%s: %d problems, %d completions", name, len(problems), count)


def _summary(
    config: TrainConfig, step: int, rows: Sequence[EvaluationRow], seconds: float
) -> dict[str, Any]:
    evaluation = config.evaluation
    first = evaluation.of_set(next(iter(evaluation.sets)))
    return {
        "model": config.model.name_or_path,
        "step": step,
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


def print_rows(rows: Sequence[EvaluationRow]) -> None:
    """Print the results table, at most 160 columns wide outside of a terminal."""
    print_table(_HEADINGS, [_cells(row) for row in rows], _WIDTH)


def _cells(row: EvaluationRow) -> list[object]:
    of_set = row["set"]
    by = "all"
    if row["by"] != "all":
        of_set = ""  # only the row of the whole set shows its name
        by = f"{row['by']} {row['value'] or 'none'}"
    return [
        of_set,
        by,
        row["problems"],
        row["k"],
        f"{row['accuracy']:.3f}",
        _interval(row),
        _pass_at_k(row),
        f"{row['completion_length']:.1f}",
        f"{row['truncated']:.1%}",
        f"{row['unparsed']:.1%}",
        f"{row['timeouts']:.1%}",
        f"{row['errors']:.1%}",
    ]


def _interval(row: EvaluationRow) -> str:
    if row["low"] is None:
        return "-"
    return f"{row['low']:.3f} .. {row['high']:.3f}"


def _pass_at_k(row: EvaluationRow) -> str:
    """Return the row's values of pass@k, such as ``0.412 @4, 0.530 @16``, or a dash."""
    values = []
    for key, value in row.items():
        quantity, _, k = key.partition("/")
        if quantity == "pass_at" and int(k) != row["k"]:
            values.append(f"{value:.3f} @{k}")
    if "pass_at_k" in row:
        values.append(f"{row['pass_at_k']:.3f} @{row['k']}")
    return ", ".join(values) or "-"
