"""Read a sweep's results from its folder (event log, metrics, correctness records), without
MLflow.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from dashboards.results import Guard, Results
from dashboards.rounds import Rounds
from dashboards.sources.scores import guards_of
from dashboards.statistics.scoring import Scoring, Values
from dashboards.trial import TRAINING_CURVES, Curve, Objective, TrialRecord
from loptune.files import Record, read_records
from loptune.run_names import lock_owner
from sweep.record.baseline import is_baseline
from sweep.record.folder import read_spec
from sweep.record.guard_scores import missed_guards
from sweep.record.identical_trials import identical_trials
from sweep.record.recorded_rounds import recorded_rounds
from sweep.record.sweep_record import SweepRecord, spent_seconds
from sweep.search.history import Configuration, open_trial
from sweep.space.arms import arm_name, arms
from sweep.space.scoring import amount_of, axes, guards_by, scoring_of, second_of
from sweep.space.spec import STEP, SweepSpec
from trainer.evaluation.correctness import read_correctness
from trainer.run_folder import RunFolder
from trainer.tracking.inputs import accepted_changes

_ACCURACY = "eval/accuracy"
_GUARDS = "objective.guards"
_MAX_POINTS = 200  # maximum number of points per training curve, to keep the page small


def read_results(sweep: SweepRecord, *, may_run: bool = True) -> Results:
    """Return a sweep's results, including the results of its finalists on fresh seeds. Also works
    while the sweep is running.

    ``may_run=False`` treats the sweep as ended, although the driver that is closing it still has
    the lock.

    Raises:
        StorageError: a record is damaged.
        ConfigError: the search space of the confirmation was edited and is no longer valid.
    """
    results = _results(sweep)
    if not may_run:
        results = dataclasses.replace(results, running=False)
    folder = sweep.folder.confirmation
    if not folder.event_log.exists():
        return _with_scores(sweep.spec, results)
    fresh = _results(SweepRecord(read_spec(folder), folder), results.searched)
    fresh = dataclasses.replace(
        fresh,
        earlier_confirmations=len(sweep.folder.confirmations) - 1,
        search_labels=results.labels,
    )
    return _with_scores(sweep.spec, dataclasses.replace(results, fresh=fresh))


def _results(sweep: SweepRecord, searched: tuple[str, ...] | None = None) -> Results:
    """Build the results. ``searched`` overrides the keys that distinguish configurations, so that
    finalists are labeled as in their search.
    """
    spec = sweep.spec
    configurations = sweep.configurations
    running = lock_owner(sweep.folder.root) is not None
    scoring = scoring_of(spec)
    objective = Objective(
        metric=scoring.name,
        mode=spec.objective.mode,
        window=scoring.window,
        second=None if spec.objective.second is None else spec.objective.second.metric,
        second_mode="min" if spec.objective.second is None else spec.objective.second.direction,
        worthwhile=spec.objective.worthwhile,
        held_out=spec.program.is_held_out,
        benchmarks=scoring.metrics if len(scoring.metrics) > 1 else (),
    )
    guards = guards_of(spec.objective.guards, _GUARDS)
    measured = (*scoring.metrics, *(guard.metric for guard in guards))
    reader = _TrialReader(
        sweep=sweep,
        scoring=scoring,
        measured=tuple(dict.fromkeys(measured)),
        objective=objective,
        running=running,
    )
    trials = []
    for configuration in configurations:
        # including seeds of a longer earlier plan
        for seed in dict.fromkeys([*spec.seeds, *configuration.results]):
            trial = reader.read(configuration, seed)
            if trial is not None:
                trials.append(trial)
    model, task = spec.program.setting()
    rounds = _rounds(sweep)
    if searched is None:
        searched = _searched(spec, configurations)
    planned = None
    if rounds is None:  # rounds may stop early
        planned = sweep.planned
    tuned_arms: tuple[str, ...] = ()
    if spec.search.tune_within is not None:
        tuned_arms = tuple(arms(spec))
    results = Results(
        name=sweep.folder.name,
        objective=objective,
        trials=tuple(trials),
        searched=searched,
        kinds={key: parameter.kind for key, parameter in spec.parameters.items()},
        source=str(sweep.folder.root),
        model=model,
        task=task,
        planned=planned,
        running=running,
        device="GPU" if spec.resources.gpus_per_trial else "CPU",
        devices=float(spec.resources.devices),
        adaptive=spec.adaptive,
        listed=not spec.search.configurations and spec.confirms is None,
        arms=tuned_arms,
        declared_blocks=spec.program.seeds_are_blocks,
        rounds=rounds,
        warnings=tuple(_warnings(sweep)),
        runs_dir=str(sweep.folder.runs_dir),
        place=STEP if scoring.axis is None else scoring.axis.name,
        at_equal_amounts=scoring.axis is not None,
        budget=scoring.budget,
    )
    return dataclasses.replace(results, baseline=_baseline(sweep, results))


def _with_scores(spec: SweepSpec, results: Results) -> Results:
    """Add the results by benchmark, and the guards."""
    objective = results.objective
    by_score = {}
    for metric in objective.benchmarks:
        by_score[metric] = results.scored_by(metric, objective.mode)
    guards = []
    for guard in guards_of(spec.objective.guards, _GUARDS):
        judged = results.scored_by(guard.metric, guard.mode, guard.margin)
        guards.append(Guard(guard.metric, guard.margin, judged))
    return dataclasses.replace(results, by_score=by_score, guards=tuple(guards))


def _baseline(sweep: SweepRecord, results: Results) -> str | None:
    """Return the number of the listed baseline; if none is listed, of the first plain configuration
    with a score. None if there is no such configuration, or if arms are tuned.
    """
    spec = sweep.spec
    if spec.baselines:
        return str(spec.reported(0))
    if results.arms:
        return None
    scored = set(results.comparable.configuration)
    for configuration in sweep.configurations:
        number = str(spec.reported(configuration.number))
        if number in scored and is_baseline(spec, configuration):
            return number
    return None


def _warnings(sweep: SweepRecord) -> Iterator[str]:
    if changes := accepted_changes(sweep.folder.root):
        yield f"Not all trials are comparable, because files changed during the sweep: {changes}."
    yield from identical_trials(sweep)
    yield from missed_guards(sweep)


def _searched(spec: SweepSpec, configurations: Iterable[Configuration]) -> tuple[str, ...]:
    """Return the program's keys that differ between configurations."""
    values: dict[str, set[str]] = {}
    for configuration in configurations:
        for key, value in spec.program.flat(configuration.resolved).items():
            values.setdefault(key, set()).add(str(value))
    return tuple(key for key, different in values.items() if len(different) > 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _TrialReader:
    """Adds the results in a trial's folder to its record in the event log."""

    sweep: SweepRecord
    scoring: Scoring
    measured: tuple[str, ...]  # metrics of the score and of guards
    objective: Objective
    running: bool  # whether a driver runs the sweep

    def read(self, configuration: Configuration, seed: int) -> TrialRecord | None:
        """Return a trial; None if it has neither a result nor a line of metrics."""
        ended = configuration.results.get(seed)
        trial = ended or open_trial(configuration, seed)
        run_dir = self.sweep.folder.trial(trial.name)
        records = read_records(RunFolder(run_dir).metrics)
        if ended is None and not records:
            return None
        values = self.scoring.of(*self.measured).values(records)
        described = self._described(trial, configuration, records, values)
        if ended is None:
            return self._from_running(described, values)
        return self._from_ended(described, run_dir)

    def _curves(self, records: list[Record], values: Values) -> dict[str, Curve]:
        """Return metric -> curve, including metrics without a point."""
        objective = self.objective
        curves = {metric: self.scoring.curve(values, metric) for metric in self.measured}
        held_out = objective.held_out_metric
        if held_out != objective.metric:
            curves[held_out] = _curve(records, held_out)
        if objective.benchmarks:
            combined = {**values, objective.metric: self.scoring.history(values)}
            curves[objective.metric] = self.scoring.curve(combined, objective.metric)
        for metric in TRAINING_CURVES:
            curves.setdefault(metric, _curve(records, metric, _MAX_POINTS))
        return curves

    def _described(
        self,
        trial: TrialRecord,
        configuration: Configuration,
        records: list[Record],
        values: Values,
    ) -> TrialRecord:
        """Add the fields that do not depend on how the trial ended."""
        curves = self._curves(records, values)
        spec = self.sweep.spec
        program = spec.program
        shown = program.values({}, program.always_shown)
        algorithm, rule = program.rule_of(configuration.resolved)
        evaluated = [
            step for step, value in self.scoring.history(values).items() if math.isfinite(value)
        ]
        seconds = sum(spent_seconds(record) for record in records)
        return dataclasses.replace(
            trial,
            configuration=str(spec.reported(configuration.number)),
            parameters={**shown, **program.flat(configuration.resolved)},
            algorithm=algorithm,
            rule=rule,
            arm=arm_name(spec, configuration.parameters),
            step=float(max(evaluated)) if evaluated else math.nan,
            hours=spec.resources.devices * seconds / 3600,
            test=self._held_out_score(curves, values),
            curves={metric: curve for metric, curve in curves.items() if curve.steps},
            scores=self._scores(records, values),
            costs=_amounts(spec, self.scoring, records),
            second=self._second(trial, records),
            latest=_latest(records),
        )

    def _scores(self, records: list[Record], values: Values) -> dict[str, float]:
        """Return metric -> score, of every metric of the objective and of the guards."""
        scores = {}
        for metric in self.scoring.metrics:
            scores[metric] = self.scoring.of(metric).score(values)
        for metric, guard in guards_by(self.sweep.spec).items():
            scores[metric] = guard.value(records)
        return scores

    def _second(self, trial: TrialRecord, records: list[Record]) -> float:
        """Return the second objective, as recorded for an ended trial, else the value so far."""
        second = second_of(self.sweep.spec)
        if second is None or trial.ended:
            return trial.second
        return second.value(records)

    def _held_out_score(self, curves: Mapping[str, Curve], values: Values) -> float:
        """Return the score on held-out problems; NaN if there were none."""
        objective = self.objective
        if objective.held_out:
            return self.scoring.score(values)
        return curves[objective.held_out_metric].score(objective.window)

    def _from_running(self, trial: TrialRecord, values: Values) -> TrialRecord:
        """Add the state and the score so far of a trial that has not ended."""
        return dataclasses.replace(
            trial, state="RUNNING" if self.running else "KILLED", score=self.scoring.score(values)
        )

    def _from_ended(self, trial: TrialRecord, run_dir: Path) -> TrialRecord:
        """Add why a trial failed, or which problems a complete one solved."""
        if trial.state == "FAIL":
            return dataclasses.replace(
                trial, score=math.nan, reason=self.sweep.failure_reason(trial)
            )
        if trial.state == "COMPLETE":
            solved = None
            if self.scoring.is_plain:
                solved = _solved(RunFolder(run_dir).correctness, self.objective)
            return dataclasses.replace(trial, solved=solved)
        return trial


def _amounts(spec: SweepSpec, scoring: Scoring, records: list[Record]) -> dict[str, float]:
    """Return axis -> the amount that a trial had used at the point of comparison; without time,
    which depends on the machine's load.
    """
    named = axes(spec)
    amounts = {name: amount_of(named[name], scoring, records) for name in spec.program.amounts}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _curve(records: list[Record], metric: str, most: int | None = None) -> Curve:
    """Return a metric's curve, thinned evenly to at most ``most`` points including the last."""
    points = {}
    for record in records:
        if record.get(metric) is not None:
            points[int(record["step"])] = float(record[metric])
    steps = sorted(points)
    if most is not None:
        stride = max(1, math.ceil(len(steps) / most))
        steps = steps[::-1][::stride][::-1]  # backward from the last step, which is kept
    return Curve(tuple(steps), tuple(points[step] for step in steps))


def _latest(records: list[Record]) -> dict[str, float]:
    latest: dict[str, float] = {}
    for record in records:
        for name, value in record.items():
            if name.startswith("tokens/") and value is not None:
                latest[name] = value
    return latest


def _solved(path: Path, objective: Objective) -> tuple[float, ...] | None:
    """Return the fraction correct per problem over the evaluations in the score; None if the score
    is not the accuracy on one set, or if the trial did not record the problems of that set.
    """
    metric = objective.metric
    if not metric.startswith(_ACCURACY):
        return None
    sets = read_correctness(path)
    name = metric.removeprefix(f"{_ACCURACY}/")
    if metric == _ACCURACY:
        name = next(iter(sets), "")  # name of the first set
    if name not in sets:
        return None
    by_step = sets[name]
    last = [by_step[step] for step in sorted(by_step)[-objective.window :]]
    accuracy = np.mean([fractions for fractions, _ in last], axis=0)
    return tuple(map(float, accuracy))


def _rounds(sweep: SweepRecord) -> Rounds | None:
    spec = sweep.spec
    recorded = recorded_rounds(sweep)
    if recorded is None:
        return None
    results = []
    for result in recorded.results:
        number = str(spec.reported(int(result.configuration)))
        baseline = str(spec.reported(int(result.baseline)))
        results.append(dataclasses.replace(result, configuration=number, baseline=baseline))
    guards = {}
    for finalist, by_metric in recorded.guards.items():
        guards[str(spec.reported(int(finalist)))] = by_metric
    return Rounds(
        planned=recorded.design.analyses,
        worthwhile=recorded.design.worthwhile,
        outcome=recorded.outcome,
        results=tuple(results),
        guards=guards,
    )
