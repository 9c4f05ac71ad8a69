"""Computation of a run's score from its logged values, in a sweep and in `sweep judge`.

A score is the mean of the last evaluations of a metric, or the mean of its curve just before a
given amount of an axis, such as tokens. The scores of several benchmarks are combined into a
composite.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dashboards.statistics.composites import Composite
from dashboards.trial import Curve
from loptune.errors import ProgramError
from loptune.files import Record
from loptune.score import score

if TYPE_CHECKING:
    from dashboards.statistics.budgets import Budget

Values = Mapping[str, Mapping[int, float]]  # metric, or axis -> training step -> value


@dataclass(frozen=True)
class Axis:
    """An amount that grows during a run."""

    name: str
    # metrics whose sum is the amount; if empty, the axis itself is a metric
    parts: tuple[str, ...] = ()
    unit: float = 1.0  # factor from the unit of the metrics to the unit of the axis

    def amounts(self, records: Sequence[Record]) -> dict[int, float]:
        """Return the amount that a run had used, by training step."""
        amounts: dict[int, float] = {}
        used = 0.0
        is_logged = any(part in record for record in records for part in self.parts)
        for record in records:
            parts = [_number(record.get(part, 0.0)) for part in self.parts]
            used += self.unit * sum(part for part in parts if math.isfinite(part))
            amount = _number(record.get(self.name))
            if self.parts:
                amount = used if is_logged else math.nan
            if math.isfinite(amount):
                amounts[int(record["step"])] = amount
        return amounts


@dataclass(frozen=True)
class Scoring:
    """A rule that turns the evaluations of a run into its score."""

    metrics: tuple[str, ...]
    window: int = 1  # evaluations averaged into a score; unused along an axis
    composite: Composite = field(default_factory=Composite)
    axis: Axis | None = None
    at: float = math.inf  # amount of the axis at which runs are compared

    @property
    def name(self) -> str:
        """The name of the score."""
        if len(self.metrics) == 1:
            return self.metrics[0]
        return self.composite.label(self.metrics)

    @property
    def is_plain(self) -> bool:
        """Whether the score needs only the values of one metric."""
        return len(self.metrics) == 1 and self.axis is None

    def of(self, *metrics: str) -> "Scoring":
        """Return the same scoring for other metrics."""
        return replace(self, metrics=metrics)

    def values(self, records: Sequence[Record]) -> Values:
        """Return the values that the score needs from a run's records; NaN for null, which stands
        for a value that was not finite.
        """
        values: dict[str, dict[int, float]] = {metric: {} for metric in self.metrics}
        for record in records:
            for metric in self.metrics:
                if metric in record:
                    values[metric][int(record["step"])] = _number(record[metric])
        if self.axis is not None:
            values[self.axis.name] = self.axis.amounts(records)
        return values

    def history(self, values: Values) -> dict[int, float]:
        """Return the composite at every step at which all metrics have a value."""
        first = values[self.metrics[0]]
        if len(self.metrics) == 1:
            return dict(first)
        history = {}
        for step in first:
            if all(step in values[metric] for metric in self.metrics):
                history[step] = self.composite.of(
                    {metric: values[metric][step] for metric in self.metrics}
                )
        return history

    @property
    def budget(self) -> "Budget | None":
        """The amount at which runs are compared; None without an axis."""
        # importing NumPy with this module would delay every command
        from dashboards.statistics.budgets import Budget

        return None if self.axis is None else Budget.of(self.axis.name, self.at)

    def curve(self, values: Values, metric: str) -> Curve:
        """Return the finite values of a metric, over the axis if there is one."""
        from dashboards.statistics.budgets import over_amounts

        finite = {step: value for step, value in values[metric].items() if math.isfinite(value)}
        curve = _curve(finite)
        if self.axis is None or not curve.steps:
            return curve
        amounts = values.get(self.axis.name)
        return over_amounts(curve, _curve(amounts)) if amounts else Curve((), ())

    def score(self, values: Values) -> float:
        """Return the score so far; along an axis, the score at the latest amount up to ``at``. NaN
        if there is none yet.
        """
        scores = {metric: self._score(values, metric) for metric in self.metrics}
        return self.composite.of(scores) if len(scores) > 1 else scores[self.metrics[0]]

    def _score(self, values: Values, metric: str) -> float:
        from dashboards.statistics.budgets import Budget, score_at

        if self.axis is None:
            return score(values[metric], self.window)
        curve = self.curve(values, metric)
        if not curve.steps:
            return math.nan
        budget = Budget.of(self.axis.name, min(self.at, curve.steps[-1]))
        return score_at(curve, budget)

    def check_complete(self, values: Values) -> None:
        """Reject a run that has ended without the values that its score needs.

        Raises:
            ProgramError: it did not log a metric, or never all metrics at the same step; the axis
                decreases; the run ended before the amount of the axis; or its first evaluation is
                after the start of the score's window.
        """
        self._check_axis_grows(values)
        budget = self.budget
        for metric in self.metrics:
            if not values[metric]:
                raise _not_logged(metric)
            if budget is None:
                continue
            places = self.curve(values, metric).steps
            if not places:
                raise _not_logged(budget.axis)
            if places[-1] < budget.at:
                raise ProgramError(
                    f"the run ended at {budget.axis} {places[-1]:.6g}, before {budget.at:.6g}",
                    "objective.at",
                    "train longer, or compare at a smaller amount",
                    code="short-run",
                )
            if places[0] > budget.start:
                raise ProgramError(
                    f"the first evaluation is at {budget.axis} {places[0]:.6g}, after "
                    f"{budget.start:.6g}, where the score's window begins",
                    "objective.at",
                    "evaluate earlier, or compare at a larger amount",
                    code="late-run",
                )
        if not self.history(values):
            raise ProgramError(
                f"{', '.join(self.metrics[:-1])} and {self.metrics[-1]} were never logged at "
                "the same step",
                "objective.metric",
                "log them together at every evaluation",
                code="no-common-step",
            )

    def _check_axis_grows(self, values: Values) -> None:
        from dashboards.statistics.budgets import check_grows

        if self.axis is not None:
            amounts = _curve(values.get(self.axis.name, {}))
            check_grows(self.axis.name, amounts, "objective.axis", "step", "the run")


def _not_logged(name: str) -> ProgramError:
    return ProgramError(
        f"the run ended without logging {name}",
        "objective",
        "choose a metric that the program logs",
        code="metric-not-logged",
    )


def until(values: Mapping[int, float], last: int) -> dict[int, float]:
    """Return the values up to a training step."""
    return {step: value for step, value in values.items() if step <= last}


def _number(value: float | None) -> float:
    """Return a value of a record as a number; NaN if it is null."""
    return math.nan if value is None else float(value)


def _curve(values: Mapping[int, float]) -> Curve:
    steps = sorted(values)
    return Curve(tuple(map(float, steps)), tuple(values[step] for step in steps))
