"""``trainer evaluate``: how good a model is on sets of problems, with intervals."""

import itertools
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from trainer.checkpoint import damaged_files, intact_checkpoints
from trainer.config.schema import TrainConfig, apply_overrides, load_config
from trainer.config.yaml_document import YamlDocument, parse_value, validate
from trainer.errors import ConfigError, MissingError, StorageError
from trainer.evaluation.evaluate import (
    EvaluationResult,
    completion_rows,
    evaluate,
    evaluation_metrics,
    pass_at,
)
from trainer.evaluation.results_row import Cell, print_results_row, results_row
from trainer.evaluation.table import EvaluationRow, evaluation_rows, print_rows
from trainer.parallel.device import compute_dtype
from trainer.policy.architectures import TINY
from trainer.policy.load import check_weights, load_policy, load_tokenizer
from trainer.rollouts.collect import scoring_error
from trainer.types import Problem, Rollout, RunContext

EXPERIMENT = "evaluate"
RESULT_FILE = "evaluation.json"
_SET = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]*)=(.+)", re.DOTALL)
_STEP = re.compile(r"step-(\d+)")
_PER_SET = ("temperature", "completions_per_problem", "pass_at_k")


@dataclass(frozen=True)
class EvaluatedModel:
    """What is evaluated: a hub name or folder, the run it comes from, and its training step (0 if unknown)."""

    name_or_path: str
    run_config: Path | None
    step: int


def find_model(model: str) -> EvaluatedModel:
    """The model behind ``tiny``, a hub name, a model folder, a checkpoint, or a run (its newest checkpoint).

    Raises:
        MissingError: a run without an intact checkpoint.
        StorageError: a checkpoint whose files are not what was written.
    """
    folder = Path(model).expanduser()
    if (folder / "config.yaml").is_file() and not (folder / "config.json").is_file():
        newest = next(intact_checkpoints(folder / "checkpoints"), None)
        if newest is None:
            raise MissingError(f"run {folder.name} has no intact checkpoint", str(folder), "train it first")
        folder = newest
    found = _STEP.fullmatch(folder.name)
    if found is None or not folder.is_dir():
        return EvaluatedModel(model, None, 0)
    damaged = damaged_files(folder)
    if damaged:
        raise StorageError(
            f"the checkpoint is damaged: {', '.join(damaged)}", str(folder), "evaluate another step of the run"
        )
    config = folder.parent.parent / "config.yaml"
    return EvaluatedModel(str(folder), config if config.is_file() else None, int(found[1]))


def last_checkpoints(run: str, count: int) -> list[EvaluatedModel]:
    """The last ``count`` checkpoints of a run, oldest first.

    Raises:
        MissingError: not a run folder, or one without so many checkpoints one after the other.
    """
    folder = Path(run).expanduser()
    root = folder / "checkpoints"
    if not (folder / "config.yaml").is_file() or not root.is_dir():
        raise MissingError("only a run has last checkpoints", run, "give the folder of a run, or leave out --last")
    config = load_config(str(folder / "config.yaml"))
    paths = list(itertools.islice(intact_checkpoints(root), count))[::-1]
    steps = [int(path.name.removeprefix("step-")) for path in paths]
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    # The best checkpoint may be kept though those after it are gone.
    if len(steps) < count or any(gap > config.checkpoint.every_steps for gap in gaps):
        raise MissingError(
            f"the last {count} checkpoints are not all there: steps {', '.join(map(str, steps)) or 'none'} are",
            str(root),
            f"train with checkpoint.keep_last={count} (and sweep with storage.ended_trials=all), or take fewer",
        )
    return [
        EvaluatedModel(str(path), folder / "config.yaml", step) for path, step in zip(paths, steps, strict=True)
    ]


def evaluation_config(
    found: EvaluatedModel,
    spec: str | None,
    overrides: Sequence[str],
    flags: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> TrainConfig:
    """The configuration of an evaluation: that of the spec, else of the model's run, changed as asked.

    Args:
        found: the model.
        spec: preset or file.
        overrides: ``key=value``.
        flags: further dotted keys; ``evaluation.sets`` are ``NAME=SOURCE``.
        limit: most problems of a set.

    Raises:
        ConfigError: nothing says what to evaluate on, or several greedy completions are asked for.
    """
    if spec is None and found.run_config is None and found.name_or_path != TINY:
        raise ConfigError(
            f"no configuration says how to evaluate {found.name_or_path}: it is not in a run folder",
            "--spec",
            "add --spec PRESET_OR_FILE, see `trainer presets`",
        )
    base = load_config(spec or (str(found.run_config) if found.run_config else "tiny_kk"), overrides)
    same = base.model.name_or_path == found.name_or_path
    changes: dict[str, Any] = {
        "model.name_or_path": found.name_or_path,
        "model.revision": base.model.revision if same else None,
        "model.random_weights": False,
        # One whole model on every rank: nothing is trained.
        "parallel.strategy": "ddp" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "none",
        "parallel.offload": "none",
        "rollout.vllm.tensor_parallel": 1,
        "tracking.tags": {},  # those of the run would make this one of its sweep's trials
    }
    if flags and "evaluation.completions_per_problem" in flags:
        changes["evaluation.pass_at_k"] = None  # that of the run may be more than there are now
    if flags and "evaluation.sets" not in flags and any(f"evaluation.{key}" in flags for key in _PER_SET):
        # What is asked for here holds for all sets.
        changes |= {f"evaluation.sets.{name}.{key}": None for name in base.evaluation.sets for key in _PER_SET}
    changes |= flags or {}
    if flags and "evaluation.sets" in flags:
        changes["evaluation.sets"] = dict(map(parse_set, flags["evaluation.sets"]))
    config = apply_overrides(base, changes, source="command line")
    for evaluation in map(config.evaluation.of_set, config.evaluation.sets):
        if evaluation.temperature > 0 or evaluation.completions_per_problem == 1:
            continue
        raise ConfigError(
            f"{evaluation.completions_per_problem} greedy completions of a problem are all the same",
            "-k, evaluation.completions_per_problem",
            "add --temperature 1.0, or -k 1",
        )
    return config if limit is None else _limited(config, limit)


def record_name(model: str) -> str:
    """``evaluate-``, the last parts of the model's name, and the time."""
    parts = [part for part in re.split(r"[^A-Za-z0-9]+", model) if part not in ("", "checkpoints", "runs")]
    return f"evaluate-{'-'.join(parts)[-36:].strip('-')}-{time.strftime('%Y%m%d-%H%M%S')}"


def parse_set(text: str) -> tuple[str, dict[str, Any]]:
    """``NAME=SOURCE`` as a dataset, split ``test`` unless it says otherwise.

    The source is a file, a hub name, ``generated``, or a YAML mapping with the keys of a dataset.

    Raises:
        ConfigError: not of this form.
    """
    match = _SET.fullmatch(text)
    if match is None:
        raise ConfigError(f"not a set: {text}", "--sets", "write NAME=SOURCE, e.g. dev=problems.parquet")
    name, value = match[1], match[2].strip()
    try:
        source = parse_value(value, f"--sets {name}") if value.startswith("{") else {"source": value}
    except ConfigError:
        source = None
    if not isinstance(source, dict):
        raise ConfigError(
            f"not a YAML mapping: {value}", f"--sets {name}", f"write {name}='{{source: FILE, limit: 100}}'"
        )
    return name, {"split": "test", **source}


def _limited(config: TrainConfig, limit: int) -> TrainConfig:
    data = config.model_dump(mode="json")
    for dataset in data["evaluation"]["sets"].values():
        dataset["limit"] = min(limit, dataset["limit"] or limit)
    return validate(TrainConfig, YamlDocument(data, {}, "command line"))


def run_evaluation(
    config: TrainConfig,
    models: Sequence[EvaluatedModel],
    name: str,
    runs_dir: Path,
    out: Path | None,
    as_json: bool,
) -> int:
    """Evaluate, print, and record into ``runs_dir/name`` and MLflow. Returns the exit code.

    Of several models, which are checkpoints of one run, the row of their means is added. Started by torchrun,
    every rank answers its share of the problems.

    Raises:
        RewardError: after the results were recorded, where scoring failed too often for them to mean anything.
    """
    # MLflow, engines and reward processes take seconds to import.
    from trainer.parallel.start import make_parallel
    from trainer.rollouts.build import build_rewards
    from trainer.tracking.tracker import NullTracker

    check_weights(config.model)
    parallel = make_parallel(config)
    tokenizer = load_tokenizer(config.model)
    sets = _load_sets(config, tokenizer)
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
                own = runs_dir / name / RESULT_FILE
                _record(tracker, models, results, found, [own, *([out] if out else [])])
                if as_json:
                    print(json.dumps(found, indent=2))
                else:
                    _print(models, rows, cells)
                    print(f"results: {out or own}")
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
    from trainer.tracking.mlflow_store import prepare_store, tracking_uri
    from trainer.tracking.tracker import Tracker

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


def _load_sets(config: TrainConfig, tokenizer: Any) -> dict[str, list[Problem]]:
    from trainer.problems.load import load_problems

    return {
        name: load_problems(dataset, config.data, tokenizer) for name, dataset in config.evaluation.sets.items()
    }


def _evaluate_models(
    config: TrainConfig,
    models: Sequence[EvaluatedModel],
    tokenizer: Any,
    sets: Mapping[str, list[Problem]],
    rewards: Any,
    parallel: Any,
) -> list[EvaluationResult]:
    from trainer.rollouts.build import build_engine

    def load(model: EvaluatedModel) -> PreTrainedModel:
        settings = config.model.model_copy(update={"name_or_path": model.name_or_path})
        return load_policy(settings, parallel.device, compute_dtype(settings, parallel.device)).requires_grad_(
            False
        )

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
    config: TrainConfig,
    engine: Any,
    tokenizer: Any,
    sets: Mapping[str, list[Problem]],
    rewards: Any,
    parallel: Any,
) -> EvaluationResult:
    rollouts: dict[str, list[Rollout]] = {}
    for name, problems in sets.items():
        count = len(problems) * config.evaluation.of_set(name).completions_per_problem
        if parallel.is_main:
            print(f"{name}: {len(problems)} problems, {count} completions", file=sys.stderr, flush=True)
        rollouts |= evaluate(engine, tokenizer, rewards, {name: problems}, config, parallel).rollouts
    return EvaluationResult(rollouts, evaluation_metrics(rollouts, pass_at(config.evaluation)))


def _print(
    models: Sequence[EvaluatedModel], rows: Sequence[Sequence[EvaluationRow]], cells: Sequence[Cell]
) -> None:
    if len(models) == 1:
        print_rows(rows[0])
        return
    for model, of_model in zip(models, rows, strict=True):
        print(f"step {model.step}:")
        print_rows(of_model)
    print_results_row(cells, [model.step for model in models])


def _summary(
    config: TrainConfig,
    models: Sequence[EvaluatedModel],
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
    tracker: Any,
    models: Sequence[EvaluatedModel],
    results: Sequence[EvaluationResult],
    found: dict[str, Any],
    files: list[Path],
) -> None:
    for model, result, rows in zip(models, results, found["checkpoints"], strict=True):
        first = rows["rows"][0]
        bounds = {"eval/accuracy_low": first["low"], "eval/accuracy_high": first["high"]}
        tracker.log(result.metrics | bounds, model.step)
        for name, rollouts in result.rollouts.items():
            tracker.log_completions(completion_rows({name: rollouts}, len(rollouts)), model.step)
    for file in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise StorageError(
                f"cannot write there: {error.strerror}", str(file), "choose another --out"
            ) from error
    tracker.log_artifact(files[0])
