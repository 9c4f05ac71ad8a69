"""Scoring of the trials of a space."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboards.statistics.scoring import Axis, Scoring
from loptune.errors import ProgramError
from loptune.files import Record
from sweep.space.spec import STEP, SweepSpec

HOURS = ("gpu_hours", "cpu_hours")
_SECONDS = ("time/step", "time/evaluation")  # metrics that trials of every program record


def axes(spec: SweepSpec) -> Mapping[str, Axis]:
    """Return the axes that every trial of the space records, by their names."""
    resources = spec.resources
    hours = HOURS[0] if resources.gpus_per_trial else HOURS[1]
    named = [
        Axis("seconds", _SECONDS),
        Axis(hours, _SECONDS, unit=resources.devices / 3600),
        *(Axis(name, parts) for name, parts in spec.program.amounts.items()),
    ]
    return {axis.name: axis for axis in named}


@dataclass(frozen=True)
class Measure:
    """A rule that turns a trial's records into its value of a guard or of the second objective."""

    metric: str
    scoring: Scoring  # scoring of the objective
    # axis whose amount is the value; None: the metric is scored like the objective
    axis: Axis | None = None

    def value(self, records: Sequence[Record]) -> float:
        """Return the value so far; NaN if there is none."""
        if self.axis is not None:
            return amount_of(self.axis, self.scoring, records)
        scoring = self.scoring.of(self.metric)
        return scoring.score(scoring.values(records))


@dataclass(frozen=True)
class Second(Measure):
    """A rule that turns a trial's records into its value of the second objective."""

    def check(self, value: float) -> None:
        """Reject a trial that has ended without a value.

        Raises:
            ProgramError: the trial has no value, or the value is not finite.
        """
        if not math.isfinite(value):
            raise ProgramError(
                f"the run ended without a finite value of {self.metric}",
                "objective.second",
                "choose a metric that the program logs",
                code="metric-not-logged",
            )


def second_of(spec: SweepSpec) -> Second | None:
    """Return the rule that computes the second objective from a trial's records, or None."""
    if spec.objective.second is None:
        return None
    metric = spec.objective.second.metric
    return Second(metric, scoring_of(spec), axes(spec).get(metric))


def guards_by(spec: SweepSpec) -> dict[str, Measure]:
    """Return guard metric -> rule that computes its value from a trial's records."""
    scoring = scoring_of(spec)
    named = axes(spec)
    return {
        metric: Measure(metric, scoring, named.get(metric)) for metric in spec.objective.guarded
    }


def logged_metrics(spec: SweepSpec) -> list[str]:
    """Return the metrics that a trial must log, for its score, guards and second objective."""
    metrics = [*spec.objective.metrics, *spec.objective.guarded]
    if spec.objective.second is not None:
        metrics.append(spec.objective.second.metric)
    named = axes(spec)
    return [metric for metric in dict.fromkeys(metrics) if metric not in named]


def amount_of(axis: Axis, scoring: Scoring, records: Sequence[Record]) -> float:
    """Return the amount of an axis that a trial had used at the point where trials are compared, or
    at its end if they are compared at no such point; NaN if the trial recorded none.
    """
    used = axis.amounts(records)
    if not used:
        return math.nan
    along = {} if scoring.axis is None else scoring.axis.amounts(records)
    steps = sorted(set(along).intersection(used))
    if not steps:
        return used[max(used)]
    import numpy as np  # imported here: at the top it would slow down every command

    places = [along[step] for step in steps]
    return float(np.interp(scoring.at, places, [used[step] for step in steps]))


def scoring_of(spec: SweepSpec) -> Scoring:
    """Return the rule by which the evaluations of a trial become its score."""
    objective = spec.objective
    common = Scoring(objective.metrics, objective.window, objective.combined)
    if objective.axis == STEP or objective.at is None:
        return common
    axis = axes(spec).get(objective.axis, Axis(objective.axis))
    return Scoring(objective.metrics, objective.window, objective.combined, axis, objective.at)
