"""Read a sweep's results from its folder (event log, metrics, correctness records), without
MLflow.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dashboards.results import TRAINING_CURVES, Curve, Objective, Results, Rounds, State, Trial
from sweep.record.decision import decision_of
from sweep.record.equal_trials import equal_trials
from sweep.record.folder import read_spec
from sweep.record.sweep_record import SweepRecord, spent_seconds
from sweep.search.history import Configuration, TrialKey
from sweep.space.arms import arm_of, arms
from sweep.space.spec import SweepSpec
from trainer.evaluation.correctness import read_correctness
from trainer.files import Record, read_records
from trainer.run_folder import RunFolder
from trainer.shell.run_folder import holder
from trainer.tracking.inputs import accepted_changes

_ACCURACY = "eval/accuracy"
_MAX_POINTS = 200  # per training curve, to keep the page small


def read_results(sweep: SweepRecord, *, at_work: bool = True) -> Results:
    """Return a sweep's results, with its finalists on fresh seeds; works while the sweep runs.

    ``at_work=False`` treats the sweep as ended although its driver, which is closing it, still
    holds the lock.

    Raises:
        StorageError: a record is damaged.
    """
    results = _results(sweep)
    if not at_work:
        results = dataclasses.replace(results, running=False)
    folder = sweep.folder.confirmation
    if not folder.ledger.exists():
        return results
    fresh = _results(SweepRecord(read_spec(folder), folder), results.searched)
    return dataclasses.replace(results, fresh=fresh)


def _results(sweep: SweepRecord, searched: tuple[str, ...] | None = None) -> Results:
    """Build the results. ``searched`` overrides the keys that tell configurations apart, so that
    finalists are labeled as in their search.
    """
    spec = sweep.spec
    configurations = sweep.configurations
    running = holder(sweep.folder.root) is not None
    resources = spec.resources
    said = spec.objective.model_dump(include={"metric", "mode", "window", "worthwhile"})
    objective = Objective(**said, held_out=spec.program.is_held_out)
    devices = float(resources.devices)
    read = _Reading(sweep, objective, devices, running)
    trials = [
        trial
        for configuration in configurations
        # including seeds of a longer earlier plan
        for seed in dict.fromkeys([*spec.seeds, *configuration.results])
        if (trial := read.trial(configuration, seed)) is not None
    ]
    model, task = spec.program.setting()
    rounds = _rounds(sweep)
    return Results(
        name=sweep.folder.name,
        objective=objective,
        trials=tuple(trials),
        searched=_searched(spec, configurations) if searched is None else searched,
        kinds={key: parameter.kind for key, parameter in spec.parameters.items()},
        source=str(sweep.folder.root),
        model=model,
        task=task,
        planned=sweep.planned if rounds is None else None,
        running=running,
        device="GPU" if resources.gpus_per_trial else "CPU",
        devices=devices,
        adaptive=spec.adaptive,
        listed=not spec.search.configurations and spec.confirms is None,
        baseline=str(spec.reported(0)) if spec.baselines else None,
        arms=tuple(arms(spec)) if spec.search.tune_within else (),
        rounds=rounds,
        doubts=tuple(_doubts(sweep)),
    )


def _doubts(sweep: SweepRecord) -> Iterator[str]:
    if changes := accepted_changes(sweep.folder.root):
        yield f"Not all trials are comparable, because files changed during the sweep: {changes}."
    yield from equal_trials(sweep)


def _searched(spec: SweepSpec, configurations: Iterable[Configuration]) -> tuple[str, ...]:
    """Return the program's keys that differ between configurations."""
    values: dict[str, set[str]] = {}
    for configuration in configurations:
        for key, value in spec.program.flat(configuration.resolved).items():
            values.setdefault(key, set()).add(str(value))
    return tuple(key for key, different in values.items() if len(different) > 1)


@dataclasses.dataclass(frozen=True)
class _Reading:
    """Reads the trials of a sweep."""

    sweep: SweepRecord
    objective: Objective
    devices: float
    running: bool

    def trial(self, configuration: Configuration, seed: int) -> Trial | None:
        """Return a trial; None before it has started."""
        sweep = self.sweep
        objective = self.objective
        spec = sweep.spec
        key = TrialKey(configuration.number, seed)
        run_dir = sweep.folder.trial(key.name)
        result = configuration.results.get(seed)
        records = read_records(RunFolder(run_dir).metrics)
        if result is None and not records:
            return None
        state: State = "RUNNING" if self.running else "KILLED"
        if result is not None:
            state = result.state
        parameters = spec.program.flat(configuration.resolved)
        shown = spec.program.values({}, spec.program.always_shown)
        algorithm, rule = spec.program.rule_of(configuration.resolved)
        wanted = (objective.metric, objective.sealed)
        curves_of = {name: _curve(records, name) for name in wanted}
        curves_of |= {name: _curve(records, name, _MAX_POINTS) for name in TRAINING_CURVES}
        evaluated = curves_of[objective.metric]
        score = evaluated.end(objective.window)
        if result is not None:
            score = math.nan if result.score is None else result.score
        solved = None
        if state == "COMPLETE":
            solved = _solved(RunFolder(run_dir).correctness, objective)
        return Trial(
            name=key.name,
            configuration=str(spec.reported(configuration.number)),
            seed=str(seed),
            state=state,
            score=math.nan if state == "FAIL" else score,
            parameters={**shown, **parameters},
            algorithm=algorithm,
            rule=rule,
            arm=arm_of(spec, configuration.parameters),
            reason="" if result is None else sweep.failure_reason(key, result),
            step=evaluated.steps[-1] if evaluated.steps else math.nan,
            hours=self.devices * sum(map(spent_seconds, records)) / 3600,
            test=curves_of[objective.sealed].end(objective.window),
            curves={name: curve for name, curve in curves_of.items() if curve.steps},
            latest=_latest(records),
            solved=solved,
        )


def _curve(records: list[Record], metric: str, most: int | None = None) -> Curve:
    """Return a metric's curve, thinned evenly to at most ``most`` points including the last."""
    points = {
        int(record["step"]): float(record[metric])
        for record in records
        if record.get(metric) is not None
    }
    steps = sorted(points)
    stride = 1 if most is None else max(1, math.ceil(len(steps) / most))
    kept = steps[::-1][::stride][::-1]
    return Curve(tuple(kept), tuple(points[step] for step in kept))


def _latest(records: list[Record]) -> dict[str, float]:
    latest: dict[str, float] = {}
    for record in records:
        latest |= {
            name: value
            for name, value in record.items()
            if name.startswith("tokens/") and value is not None
        }
    return latest


def _solved(path: Path, objective: Objective) -> tuple[float, ...] | None:
    """Return the fraction correct per problem over the evaluations in the score; None if the score
    is not the accuracy of one set.
    """
    metric = objective.metric
    if not metric.startswith(_ACCURACY):
        return None
    sets = read_correctness(path)
    name = next(iter(sets), None) if metric == _ACCURACY else metric.removeprefix(f"{_ACCURACY}/")
    if name is None or name not in sets:
        return None
    by_step = sets[name]
    last = [by_step[step] for step in sorted(by_step)[-objective.window :]]
    accuracy = np.mean([fractions for fractions, _ in last], axis=0)
    return tuple(map(float, accuracy))


def _rounds(sweep: SweepRecord) -> Rounds | None:
    spec = sweep.spec
    decision = decision_of(sweep)
    if decision is None:
        return None
    standings = (standing for look in decision.looks for standing in look)
    return Rounds(
        planned=decision.design.looks,
        worthwhile=decision.design.worthwhile,
        outcome=decision.outcome,
        standings=tuple(
            dataclasses.replace(stands, finalist=str(spec.reported(int(stands.finalist))))
            for stands in standings
        ),
    )
