"""The group-sequential test of `sweep confirm --rounds` and of the gate: error spending,
boundaries, decisions.

Two one-sided tests run side by side. After every interim analysis, one tests whether a
configuration is better than the baseline (its gain is above 0). The other tests whether it is not
better by a worthwhile amount (its gain is below that amount). Each spends its error rate as
information arrives (error spending [Biometrika 70, 1983], by a power of the fraction of information
[Stat. Med. 6, 1987]). The boundaries are non-binding: neither test relies on stopping at the
other's boundary, so continuing after a stop keeps the error rates.

Boundaries depend on the layout. `simulated_boundaries` takes the null distribution as paths, for
rounds (`rounds`): several finalists share a baseline, and the noise is estimated from a few seeds.
`integrated_boundaries` is for one normal statistic, for the gate (`gate`): one proposal, and a
noise that the whole campaign estimates.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dashboards.statistics.difference import Outcome
from dashboards.statistics.dunnett import Vector

_GRID = 301  # points of the numerical integration
_RANGE = 8.0  # range of the grid, in standard deviations


@dataclass(frozen=True)
class Spending:
    """The error-spending function of a sequential test."""

    error: float  # error probability of all analyses together
    exponent: float  # exponent of the fraction of information

    def by(self, fractions: Vector) -> Vector:
        """Return the error that may be spent by each fraction of the information."""
        return self.error * fractions**self.exponent


def claim_spending(error: float) -> Spending:
    """Return the spending function of false positives."""
    return Spending(error, exponent=1.0)


def futility_spending(error: float) -> Spending:
    """Return the spending function of wrongly dropped worthwhile improvements. It spends early, so
    a useless finalist costs few seeds.
    """
    return Spending(error, exponent=0.7)


@dataclass(frozen=True)
class Design:
    """Schedule and boundaries of the interim analyses."""

    analyses: tuple[int, ...]  # seeds per configuration at each interim analysis
    finalists: int
    worthwhile: float  # the smallest difference that matters, in units of the score
    # at each analysis, the t statistic above which a finalist is better
    efficacy: tuple[float, ...]
    # at each analysis, the t statistic of (worthwhile - difference) above which a finalist is
    # futile
    futility: tuple[float, ...]

    def reached(self, seeds: int) -> int:
        """Return the number of interim analyses that are reached with ``seeds`` seeds."""
        return sum(analysis <= seeds for analysis in self.analyses)

    def thresholds(self, seeds: int) -> tuple[float, float] | None:
        """Return both boundaries of the latest analysis reached with ``seeds`` seeds; None before
        the first.
        """
        reached = self.reached(seeds)
        if reached == 0:
            return None
        return self.efficacy[reached - 1], self.futility[reached - 1]

    def next_analysis(self, seeds: int) -> int | None:
        """Return the seeds at the analysis after these seeds; None after the last."""
        reached = self.reached(seeds)
        return self.analyses[reached] if reached < len(self.analyses) else None


def decide(interval: tuple[float, float], worthwhile: float) -> Outcome:
    """Return the decision for the bounds of a gain.

    Args:
        interval: bounds of the gain.
        worthwhile: the smallest gain that matters.
    """
    low, high = interval
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "not better" if high < worthwhile else "undecided"


def simulated_boundaries(statistics: Vector, spent: ArrayLike) -> Vector:
    """Return boundaries [analyses] such that a path without an effect crosses each of them, as its
    first one, with the probability to be spent there.

    ``statistics`` [paths, analyses] are simulated paths without an effect.
    ``spent`` [analyses] is the cumulative crossing probability by each analysis, non-decreasing.
    """
    crossing = np.diff(np.asarray(spent, dtype=float), prepend=0.0) * len(statistics)
    alive = np.ones(len(statistics), bool)
    bounds = []
    for place, count in enumerate(crossing):
        # ``count`` of all paths cross here for the first time; paths that crossed earlier are left
        # out
        ordered = np.sort(statistics[alive, place])[::-1]
        lower = int(count)  # interpolate between two order statistics
        bound = ordered[lower] + (count - lower) * (ordered[lower + 1] - ordered[lower])
        bounds.append(bound)
        alive &= statistics[:, place] <= bound
    return np.array(bounds)


@functools.lru_cache(maxsize=4096)
def integrated_boundaries(information: tuple[float, ...], spending: Spending) -> tuple[float, ...]:
    """Return the critical z values of the interim analyses. Without an effect, the probability that
    any of them is exceeded is ``spending.error``.

    The score statistic ``z * sqrt(information)`` is a sum of independent normal increments. Its
    density over the paths that have not crossed is carried from one analysis to the next.

    Args:
        information: 1 / variance at each analysis, ascending.
        spending: how the error probability is spent, by the fraction of information.
    """
    spent = spending.by(np.array(information) / information[-1])
    bounds: list[float] = []
    score: Vector | None = None  # grid of the score statistic
    density = np.empty(0)
    for place, amount in enumerate(information):
        to_spend = spent[place] - (spent[place - 1] if place else 0.0)
        if score is None:
            # at the first analysis the statistic is normal, and no path has been lost
            bound = float(special.ndtri(1 - to_spend))
            grid = np.linspace(-_RANGE, bound, _GRID) * math.sqrt(amount)
            density = np.exp(-(grid**2) / (2 * amount)) / math.sqrt(2 * math.pi * amount)
        else:
            # Before the bound is known, the density here is the last density convolved with a
            # normal increment. The bound cuts off the probability to be spent, and the grid ends
            # there.
            spread = math.sqrt(amount - information[place - 1])
            weights = density * _trapezoid(score)
            bound = _solve(score, weights, spread, math.sqrt(amount), to_spend)
            grid = np.linspace(-_RANGE, bound, _GRID) * math.sqrt(amount)
            steps = (grid[:, None] - score[None, :]) / spread
            kernel = np.exp(-(steps**2) / 2) / (spread * math.sqrt(2 * math.pi))
            density = kernel @ weights
        bounds.append(bound)
        score = grid
    return tuple(bounds)


def _trapezoid(grid: Vector) -> Vector:
    """Return the weights of the trapezoidal rule on an even grid."""
    weights = np.full(len(grid), grid[1] - grid[0])
    weights[[0, -1]] /= 2
    return weights


def _solve(score: Vector, weights: Vector, spread: float, scale: float, to_spend: float) -> float:
    """Return the z value that is exceeded with probability ``to_spend``, by bisection."""
    low, high = -_RANGE, _RANGE
    for _ in range(50):
        middle = (low + high) / 2
        exceeded = float(weights @ special.ndtr((score - middle * scale) / spread))
        if exceeded > to_spend:
            low = middle
        else:
            high = middle
    return (low + high) / 2
