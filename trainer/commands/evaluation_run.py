"""The work of ``trainer evaluate``: every model answers every set, and the results are printed and recorded."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from trainer.commands.found_model import FoundModel
from trainer.config.schema import TrainConfig
from trainer.evaluation.evaluate import EvaluationResult, completion_rows, evaluate, evaluation_metrics, pass_at
from trainer.evaluation.table import Cell, EvaluationRow, evaluation_rows, print_results_row, print_rows, results_row
from trainer.parallel.device import compute_dtype
from trainer.parallel.start import make_parallel
from trainer.policy.load import check_weights, load_policy, load_tokenizer
from trainer.problems.load import load_evaluation_sets
from trainer.rollouts.build import build_engine, build_rewards
from trainer.rollouts.collect import scoring_error
from trainer.tracking.mlflow_store import prepare_store, tracking_uri
from trainer.tracking.tracker import NullTracker, Tracker
from trainer.types import Problem, Rollout, RunContext

EXPERIMENT = "evaluate"
_RESULT_FILE = "evaluation.json"


def run_evaluation(config: TrainConfig, models: Sequence[FoundModel], name: str, runs_dir: Path, as_json: bool) -> int:
    """Evaluate, print, and record into ``runs_dir/name`` and MLflow. Returns the exit code.

    Of several models, which are checkpoints of one run, the row of their means is added. Started by torchrun,
    every rank answers its share of the problems.

    Raises:
        RewardError: after the results were recorded, where scoring failed too often for them to mean anything.
    """
    check_weights(config.model)
    parallel = make_parallel(config)
    tokenizer = load_tokenizer(config.model)
    sets = load_evaluation_sets(config, tokenizer)
    with build_rewards(config.reward) as rewards:  # a reward that does not exist leaves no record
        tracker = _open_tracker(config, name, runs_dir) if parallel.is_main else NullTracker()
        status = "FAILED"
        started = time.monotonic()
        try:
            results = _evaluate_models(config, models, tokenizer, sets, rewards, parallel)
            if parallel.is_main:
                rows = [evaluation_rows(result, pass_at(config.evaluation)) for result in results]
                cells = results_row([result.rollouts for result in results], config.evaluation)
                found = _summary(config, models, rows, cells, time.monotonic() - started)
                own = runs_dir / name / _RESULT_FILE
                _record(tracker, models, results, found, own)
                if as_json:
                    print(json.dumps(found, indent=2))
                else:
                    _print(models, rows, cells)
                    print(f"results: {own}")
            for result in results:
                _check_scoring(config, result)
            status = "FINISHED"
        except KeyboardInterrupt:
            status = "KILLED"
            raise
        finally:
            tracker.close(status)
    return 0


def _open_tracker(config: TrainConfig, name: str, runs_dir: Path) -> Any:
    if not config.tracking.offline:
        prepare_store(tracking_uri(config.tracking, runs_dir))
    tags = {"loptune.run": name, "loptune.model": config.model.name_or_path}
    return Tracker(config, RunContext(runs_dir / name, runs_dir, EXPERIMENT, name, tags))


def _check_scoring(config: TrainConfig, result: EvaluationResult) -> None:
    everything = [rollout for of_set in result.rollouts.values() for rollout in of_set]
    failed = [rollout.scoring_message for rollout in everything if rollout.scoring != "ok"]
    limit = config.reward.max_failure_rate
    if len(failed) > limit * len(everything):
        share = f"{len(failed) / len(everything):.0%} of the completions (reward.max_failure_rate {limit:.0%})"
        raise scoring_error(f"scoring failed for {share}: {failed[0]}")


def _evaluate_models(
    config: TrainConfig,
    models: Sequence[FoundModel],
    tokenizer: Any,
    sets: Mapping[str, list[Problem]],
    rewards: Any,
    parallel: Any,
) -> list[EvaluationResult]:
    def load(model: FoundModel) -> PreTrainedModel:
        settings = config.model.model_copy(update={"name_or_path": model.name_or_path})
        return load_policy(settings, parallel.device, compute_dtype(settings, parallel.device)).requires_grad_(False)

    policy = load(models[0])
    engine = build_engine(config, policy, tokenizer)
    results = []
    try:
        for model in models:
            if model is not models[0]:
                policy.load_state_dict(load(model).state_dict())
            engine.sync_weights(policy)
            if parallel.is_main and len(models) > 1:
                print(f"step {model.step}", file=sys.stderr)
            results.append(_evaluate_sets(config, engine, tokenizer, sets, rewards, parallel))
    finally:
        engine.close()
    return results


def _evaluate_sets(
    config: TrainConfig, engine: Any, tokenizer: Any, sets: Mapping[str, list[Problem]], rewards: Any, parallel: Any
) -> EvaluationResult:
    rollouts: dict[str, list[Rollout]] = {}
    for name, problems in sets.items():
        count = len(problems) * config.evaluation.of_set(name).completions_per_problem
        if parallel.is_main:
            print(f"{name}: {len(problems)} problems, {count} completions", file=sys.stderr, flush=True)
        rollouts |= evaluate(engine, tokenizer, rewards, {name: problems}, config, parallel).rollouts
    return EvaluationResult(rollouts, evaluation_metrics(rollouts, pass_at(config.evaluation)))


def _print(models: Sequence[FoundModel], rows: Sequence[Sequence[EvaluationRow]], cells: Sequence[Cell]) -> None:
    if len(models) == 1:
        print_rows(rows[0])
        return
    for model, of_model in zip(models, rows, strict=True):
        print(f"step {model.step}:")
        print_rows(of_model)
    print_results_row(cells, [model.step for model in models])


def _summary(
    config: TrainConfig,
    models: Sequence[FoundModel],
    rows: Sequence[Sequence[EvaluationRow]],
    cells: Sequence[Cell],
    seconds: float,
) -> dict[str, Any]:
    evaluation = config.evaluation
    first = evaluation.of_set(next(iter(evaluation.sets)))
    listed = [[asdict(row) for row in of_model] for of_model in rows]
    return {
        "model": config.model.name_or_path,
        "step": models[-1].step,
        "temperature": first.temperature,
        "completions_per_problem": first.completions_per_problem,
        "k": rows[-1][0].k,
        "seed": config.seed,
        "seconds": seconds,
        "rows": listed[-1],
        "checkpoints": [
            {"step": model.step, "rows": of_model} for model, of_model in zip(models, listed, strict=True)
        ],
        "row": [asdict(cell) for cell in cells],
    }


def _record(
    tracker: Any, models: Sequence[FoundModel], results: Sequence[EvaluationResult], found: dict[str, Any], file: Path
) -> None:
    for model, result, rows in zip(models, results, found["checkpoints"], strict=True):
        first = rows["rows"][0]
        bounds = {"eval/accuracy_low": first["low"], "eval/accuracy_high": first["high"]}
        tracker.log(result.metrics | bounds, model.step)
        for name, rollouts in result.rollouts.items():
            tracker.log_completions(completion_rows({name: rollouts}, len(rollouts)), model.step)
    file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    tracker.log_artifact(file)
