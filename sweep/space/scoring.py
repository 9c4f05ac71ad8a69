"""Scoring of the trials of a space."""

from collections.abc import Mapping

from dashboards.statistics.scoring import Axis, Scoring
from sweep.space.spec import STEP, SweepSpec

HOURS = ("gpu_hours", "cpu_hours")
_SECONDS = ("time/step", "time/evaluation")  # in the record of every program


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


def scoring_of(spec: SweepSpec) -> Scoring:
    """Return the rule by which the evaluations of a trial become its score."""
    objective = spec.objective
    common = Scoring(objective.metrics, objective.window, objective.combined)
    if objective.axis == STEP or objective.at is None:
        return common
    axis = axes(spec).get(objective.axis, Axis(objective.axis))
    return Scoring(objective.metrics, objective.window, objective.combined, axis, objective.at)
