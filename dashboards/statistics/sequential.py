"""Compare finalists with a baseline in rounds of fresh seeds: a group-sequential test with early
stopping.

Two one-sided tests run side by side. One asks after every round whether a finalist is better than
the baseline (its difference above 0), the other whether it is not better by a worthwhile amount
(its difference below that). Each spends its error rate as seeds arrive (error spending [Biometrika
70, 1983], by a power of the fraction of seeds [Stat. Med. 6, 1987]). The boundaries are
non-binding: neither test relies on stopping at the other's boundary, so continuing after a stop
keeps the error rates. With few seeds the statistics are far from normal, so the boundaries are
simulated, with the noise estimated as in a real round. Each interim analysis is the test of
`comparison` at these boundaries.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from dashboards.statistics.comparison import compare
from dashboards.statistics.dunnett import Vector, level
from dashboards.statistics.seed_noise import Noise, Scores
from dashboards.statistics.verdict import MIN_SEEDS, Mode, oriented

Decision = Literal["better", "not better", "worse", "open"]

MISSED = 0.1  # probability of dropping a finalist that is better by exactly the worthwhile amount
# exponents of the fraction of seeds in the two spending functions: the futility error is spent
# early
_SPENDING = (1.0, 0.7)
_ROUNDS = 8
# Seeds at the first interim analysis. Analyses at three and four seeds report too many false
# positives on real trainings with equal means, and add no power in the end
# (research/verdict_on_real_runs.py).
_FIRST = 5
PATHS = 100_000  # simulated confirmations; boundaries are accurate to about 0.01 to 0.02


@dataclass(frozen=True)
class Design:
    """Schedule and boundaries of the interim analyses."""

    looks: tuple[int, ...]  # seeds per configuration at each interim analysis
    finalists: int
    worthwhile: float  # the smallest difference that matters, in units of the score
    better: tuple[float, ...]  # at each analysis, the t statistic above which a finalist is better
    # and the t statistic of (worthwhile - difference) above which it is futile
    futile: tuple[float, ...]

    def thresholds(self, seeds: int) -> tuple[float, float] | None:
        """Return both boundaries of the latest analysis reached with ``seeds`` seeds; None before
        the first.
        """
        reached = sum(look <= seeds for look in self.looks)
        return (self.better[reached - 1], self.futile[reached - 1]) if reached else None


@dataclass(frozen=True)
class Standing:
    """The result of a finalist at an interim analysis. All numbers are gains: larger is better in
    both modes.
    """

    finalist: str
    seeds: int
    gain: float  # mean over shared seeds of finalist - baseline
    # above 0 the finalist is better; None without a noise estimate
    low: float | None
    high: float | None  # below `worthwhile` it is futile
    decision: Decision


def make_design(noise: Noise | None, worthwhile: float, finalists: int, max_seeds: int) -> Design:
    """Plan interim analyses that can tell a worthwhile gain from no gain, and their boundaries.

    Args:
        noise: of one score between seeds, from earlier trials; if None, analyses go up to
            ``max_seeds``.
        worthwhile: the smallest difference that matters.
        finalists: configurations besides the baseline.
        max_seeds: upper limit on seeds, even if the design needs more.
    """
    seeds = max_seeds
    if noise is not None and noise.dof:
        # The last analysis leaves nothing undecided: its two bounds are `worthwhile` apart.
        wide = 3.4
        for _ in range(4):
            seeds = (
                math.ceil(2 * (wide * noise.sd / worthwhile) ** 2 - 1e-9)
                if worthwhile
                else max_seeds
            )
            seeds = min(max_seeds, max(_FIRST, seeds))
            better, futile = boundaries(looks_up_to(seeds), finalists)
            if wide >= better[-1] + futile[-1] - 1e-9:
                break
            wide = better[-1] + futile[-1]
    looks = looks_up_to(seeds)
    return Design(looks, finalists, worthwhile, *boundaries(looks, finalists))


def looks_up_to(seeds: int) -> tuple[int, ...]:
    """Spread at most ``_ROUNDS`` interim analyses evenly, starting at ``_FIRST`` seeds."""
    count = max(1, min(_ROUNDS, seeds - _FIRST + 1))
    places = np.linspace(_FIRST, seeds, count) if count > 1 else np.array([seeds])
    return tuple(int(place) for place in np.round(places))


@functools.lru_cache(maxsize=64)
def boundaries(
    looks: tuple[int, ...], finalists: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the boundaries of both tests at every look, from `null_paths`."""
    fractions = np.array(looks) / looks[-1]
    paths = null_paths(looks, finalists)
    # As many degrees of freedom as at the first analysis, where most false positives are reported.
    claims = level(finalists * (looks[0] - 1))
    better = spend(paths.max(axis=2), claims * fractions ** _SPENDING[0])
    # Each finalist is dropped on its own, with the noise of its own differences: it may be noisier
    # than the rest.
    futile = spend(null_paths(looks, 1)[:, :, 0], MISSED * fractions ** _SPENDING[1])
    return tuple(better.tolist()), tuple(futile.tolist())


def null_paths(looks: Sequence[int], finalists: int) -> Vector:
    """Simulate the t statistics of all finalists under the null hypothesis, [paths, looks,
    finalists].

    Every configuration has a standard normal score on each seed; seeds are blocks, and all share
    the residual noise of the additive model.
    """
    generator = np.random.default_rng(0)
    arms = finalists + 1
    sums = np.zeros((PATHS, arms))
    squares = np.zeros(PATHS)
    statistics = np.empty((PATHS, len(looks), finalists))
    seeds = 0
    for place, look in enumerate(looks):
        for _ in range(look - seeds):
            scores = generator.standard_normal((PATHS, arms))
            sums += scores
            squares += arms * scores.var(axis=1)  # around the mean of the seed
        seeds = look
        noise = (squares - arms * sums.var(axis=1) / seeds) / (finalists * (seeds - 1))
        gains = (sums[:, 1:] - sums[:, :1]) / seeds
        statistics[:, place] = gains / np.sqrt(2 * noise / seeds)[:, None]
    return statistics


def spend(statistics: Vector, spent: ArrayLike) -> Vector:
    """Return boundaries [looks] such that null paths [paths, looks] first cross each with the
    probability to be spent there.

    ``spent`` [looks] is the cumulative crossing probability by each look, non-decreasing.
    """
    crossing = np.diff(np.asarray(spent, dtype=float), prepend=0.0) * len(statistics)
    alive = np.ones(len(statistics), bool)
    bounds = []
    for place, count in enumerate(crossing):
        ordered = np.sort(statistics[alive, place])[::-1]
        whole = int(count)  # interpolate between two order statistics
        bound = ordered[whole] + (count - whole) * (ordered[whole + 1] - ordered[whole])
        bounds.append(bound)
        alive &= statistics[:, place] <= bound
    return np.array(bounds)


def standings(design: Design, scores: Scores, baseline: str, mode: Mode) -> list[Standing]:
    """Return the result of each finalist at the latest interim analysis that its seeds have
    reached.
    """
    gains = oriented(scores, 1.0 if mode == "max" else -1.0)
    decided = []
    for decision in compare(gains, baseline, design.thresholds).decisions:
        low, high = decision.interval or (None, None)
        outcome: Decision = "open"
        if decision.interval is not None and decision.seeds >= MIN_SEEDS:
            outcome = decide(*decision.interval, design.worthwhile)
        decided.append(Standing(decision.name, decision.seeds, decision.gain, low, high, outcome))
    return decided


def decide(low: float, high: float, worthwhile: float) -> Decision:
    """Return the decision that the bounds of a gain allow."""
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "not better" if high < worthwhile else "open"
