"""Compute scores of runs at the same value of a growing axis, such as tokens, seconds or
completions.

Evaluations of two runs are rarely at the same value, so a curve is interpolated linearly between
neighboring evaluations, and never beyond its last evaluation. A score is the mean of the
interpolated curve over a window that ends at the budget. The window is a length on the axis, equal
for all runs: a number of evaluations would reach further back in a run that is evaluated less
often.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboards.trial import Curve
from loptune.errors import ProgramError
from loptune.score import mean

WINDOW = 0.1  # default window as a fraction of the budget


@dataclass(frozen=True)
class Budget:
    """The axis value at which runs are compared."""

    axis: str
    at: float
    # length of the interval that ends at the budget, over which a curve is averaged
    window: float

    @classmethod
    def of(cls, axis: str, at: float) -> "Budget":
        """Return the budget with the default window."""
        return cls(axis, at, WINDOW * at)

    @property
    def start(self) -> float:
        """The axis value at which the window starts."""
        return self.at - self.window


def common_budget(
    curves: Sequence[Curve], axis: str, at: float | None = None, window: float | None = None
) -> Budget:
    """Return the common budget of one or more curves.

    Args:
        curves: curves of the runs to compare.
        axis: name of the axis.
        at: the budget; by default the largest budget that all curves reach.
        window: a length on the axis; by default a tenth of the budget, or less if a curve begins
            later.
    """
    if at is None:
        at = min(curve.steps[-1] for curve in curves)
    if window is None:
        first = max(curve.steps[0] for curve in curves)
        window = max(0.0, min(WINDOW * at, at - first))
    return Budget(axis, float(at), float(window))


def check_grows(axis: str, amounts: Curve, where: str, step: str, run: str) -> None:
    """Reject amounts of an axis that decrease within a run.

    Args:
        axis: name of the axis.
        amounts: amounts by training step.
        where: the option that chose the axis.
        step: name of the training step.
        run: name of the run in the message.

    Raises:
        ProgramError: the amounts decrease; the error shows the first such step.
    """
    values = amounts.values
    for i in range(1, len(values)):
        if values[i] < values[i - 1]:
            raise ProgramError(
                f"{axis} decreases from {values[i - 1]:g} to {values[i]:g} at {step} "
                f"{amounts.steps[i]:g} of {run}",
                where,
                "choose a column that grows during a run; if it contains amounts per step, add "
                "them up first; if the run was restarted, drop the rows that it repeated",
                code="axis-falls",
            )


def amounts_at(places: Sequence[float], amounts: Curve) -> list[float]:
    """Return the amount of an axis at the given training steps, interpolated linearly between the
    recorded amounts.

    Beyond the last record, the last rate is extrapolated by at most the median distance between two
    records, because an evaluation is often logged just after the last amount. NaN elsewhere.

    Args:
        places: training steps.
        amounts: recorded amounts by training step, at least one.
    """
    steps = np.asarray(amounts.steps, float)
    values = np.asarray(amounts.values, float)
    if len(steps) > 1:
        spacing = float(np.median(np.diff(steps)))
        rate = (values[-1] - values[-2]) / (steps[-1] - steps[-2])
        steps = np.append(steps, steps[-1] + spacing)
        values = np.append(values, values[-1] + rate * spacing)
    return list(np.interp(places, steps, values, left=np.nan, right=np.nan))


def over_amounts(curve: Curve, amounts: Curve) -> Curve:
    """Return a curve over training steps as one over the amounts of an axis. Points without an
    amount are left out; values at one amount of a coarse axis are averaged.
    """
    at: dict[float, list[float]] = {}
    for amount, value in zip(amounts_at(curve.steps, amounts), curve.values, strict=True):
        if np.isfinite(amount):
            at.setdefault(amount, []).append(value)
    places = sorted(at)
    return Curve(tuple(places), tuple(mean(at[place]) for place in places))


def score_at(curve: Curve, budget: Budget) -> float:
    """Return the mean of a curve over the budget's window, interpolated linearly; NaN if the curve
    does not cover the window, or has a value there that is not finite.
    """
    places = np.asarray(curve.steps, float)
    values = np.asarray(curve.values, float)
    if places[0] > budget.start or places[-1] < budget.at:
        return float("nan")
    first = int(np.searchsorted(places, budget.start, side="right")) - 1
    last = int(np.searchsorted(places, budget.at, side="left"))
    places = places[first : last + 1]
    values = values[first : last + 1]
    if not np.isfinite(values).all():
        return float("nan")
    if budget.window == 0:
        return float(np.interp(budget.at, places, values))
    inside = places[(places > budget.start) & (places < budget.at)]
    points = np.array([budget.start, *inside, budget.at])
    heights = np.interp(points, places, values)
    return float(np.trapezoid(heights, points) / budget.window)
