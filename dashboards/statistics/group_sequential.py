"""A group-sequential test of several finalists: analyses, error spending, boundaries, decisions.

Two one-sided tests run side by side. After every analysis, one tests whether a finalist is better
than the baseline (its difference is above 0). The other tests whether it is not better by a
worthwhile amount (its difference is below that amount). Each spends its error rate as seeds arrive
(error spending [Biometrika 70, 1983], by a power of the fraction of seeds [Stat. Med. 6, 1987]).
The boundaries are non-binding: neither test relies on stopping at the other's boundary, so
continuing after a stop keeps the error rates. With few seeds the statistics are far from normal, so
the boundaries are simulated, with the noise estimated as in a real analysis.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dashboards.statistics.difference import Outcome
from dashboards.statistics.dunnett import Vector
from dashboards.statistics.levels import level

# probability of dropping a finalist that is better by exactly the worthwhile amount
FUTILITY_ERROR = 0.1
CLAIM_EXPONENT = 1.0
FUTILITY_EXPONENT = 0.7  # the futility error is spent early
_MAX_ANALYSES = 8
# Seeds at the first interim analysis. Analyses at three and four seeds cause too many false
# positives on public trainings with equal means, and do not add power
# (research/verdict_on_real_runs.py).
FIRST_ANALYSIS_SEEDS = 5
PATHS = 100_000  # simulated confirmations; boundaries are accurate to about 0.01 to 0.02


@dataclass(frozen=True)
class Spending:
    """How the error rate of a sequential test is spent."""

    error: float  # total error
    exponent: float  # exponent of the fraction of seeds

    def by(self, fractions: Vector) -> Vector:
        """Return the error that may be spent by each fraction of the seeds."""
        return self.error * fractions**self.exponent


def schedule_analyses(seeds: int) -> tuple[int, ...]:
    """Spread at most ``_MAX_ANALYSES`` interim analyses evenly, starting at
    ``FIRST_ANALYSIS_SEEDS`` seeds.
    """
    count = max(1, min(_MAX_ANALYSES, seeds - FIRST_ANALYSIS_SEEDS + 1))
    places = np.linspace(FIRST_ANALYSIS_SEEDS, seeds, count) if count > 1 else np.array([seeds])
    return tuple(int(place) for place in np.round(places))


@functools.lru_cache(maxsize=64)
def boundaries(
    analyses: tuple[int, ...], finalists: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the boundaries of both tests at every interim analysis, from `null_paths`."""
    fractions = np.array(analyses) / analyses[-1]
    paths = null_paths(analyses, finalists)
    # The degrees of freedom of the first analysis, where most false positives occur.
    claims = level(finalists * (analyses[0] - 1))
    efficacy = spend(paths.max(axis=2), Spending(claims, CLAIM_EXPONENT).by(fractions))
    # Each finalist is dropped independently, based on the noise of its own differences: it may be
    # noisier than the others.
    futility = spend(
        null_paths(analyses, 1)[:, :, 0], Spending(FUTILITY_ERROR, FUTILITY_EXPONENT).by(fractions)
    )
    return tuple(efficacy.tolist()), tuple(futility.tolist())


def null_paths(analyses: Sequence[int], finalists: int) -> Vector:
    """Simulate the t statistics of all finalists under the null hypothesis, [paths, analyses,
    finalists].

    Every configuration has a standard normal score on each seed; seeds are blocks, and all share
    the residual noise of the additive model.
    """
    generator = np.random.default_rng(0)
    arms = finalists + 1
    sums = np.zeros((PATHS, arms))
    squares = np.zeros(PATHS)
    statistics = np.empty((PATHS, len(analyses), finalists))
    seeds = 0
    for place, analysis in enumerate(analyses):
        for _ in range(analysis - seeds):
            scores = generator.standard_normal((PATHS, arms))
            sums += scores
            squares += arms * scores.var(axis=1)  # deviations from the mean of the seed
        seeds = analysis
        noise = (squares - arms * sums.var(axis=1) / seeds) / (finalists * (seeds - 1))
        gains = (sums[:, 1:] - sums[:, :1]) / seeds
        statistics[:, place] = gains / np.sqrt(2 * noise / seeds)[:, None]
    return statistics


def spend(statistics: Vector, spent: ArrayLike) -> Vector:
    """Return boundaries [analyses] such that each is first crossed by null paths [paths, analyses]
    with the probability to be spent there.

    ``spent`` [analyses] is the cumulative crossing probability by each analysis, non-decreasing.
    """
    crossing = np.diff(np.asarray(spent, dtype=float), prepend=0.0) * len(statistics)
    alive = np.ones(len(statistics), bool)
    bounds = []
    for place, count in enumerate(crossing):
        ordered = np.sort(statistics[alive, place])[::-1]
        lower = int(count)  # interpolate between two order statistics
        bound = ordered[lower] + (count - lower) * (ordered[lower + 1] - ordered[lower])
        bounds.append(bound)
        alive &= statistics[:, place] <= bound
    return np.array(bounds)


def decide(low: float, high: float, worthwhile: float) -> Outcome:
    """Return the decision for the bounds of a gain."""
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "not better" if high < worthwhile else "undecided"
