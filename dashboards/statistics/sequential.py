"""Compare finalists with a baseline in rounds of fresh seeds: a group-sequential test with early
stopping.

Two one-sided tests run side by side. After every round, one tests whether a finalist is better than
the baseline (its difference is above 0). The other tests whether it is not better by a worthwhile
amount (its difference is below that amount). Each spends its error rate as seeds arrive (error
spending [Biometrika 70, 1983], by a power of the fraction of seeds [Stat. Med. 6, 1987]). The
boundaries are non-binding: neither test relies on stopping at the other's boundary, so continuing
after a stop keeps the error rates. With few seeds the statistics are far from normal, so the
boundaries are simulated, with the noise estimated as in a real round. Each interim analysis is the
test of `comparison` at these boundaries.
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
from dashboards.statistics.verdict import MIN_SEEDS, oriented
from dashboards.trial import Mode

Decision = Literal["better", "not better", "worse", "open"]

# probability of dropping a finalist that is better by exactly the worthwhile amount
FUTILITY_ERROR = 0.1
# exponents of the fraction of seeds in the two spending functions: the futility error is spent
# early
_SPENDING_EXPONENTS = (1.0, 0.7)
_MAX_ANALYSES = 8
# Seeds at the first interim analysis. Analyses at three and four seeds report too many false
# positives on real trainings with equal means, and add no power in the end
# (research/verdict_on_real_runs.py).
_FIRST_ANALYSIS_SEEDS = 5
PATHS = 100_000  # simulated confirmations; boundaries are accurate to about 0.01 to 0.02


@dataclass(frozen=True)
class Design:
    """Schedule and boundaries of the interim analyses."""

    analyses: tuple[int, ...]  # seeds per configuration at each interim analysis
    finalists: int
    worthwhile: float  # the smallest difference that matters, in units of the score
    # at each analysis, the t statistic above which a finalist is better
    efficacy: tuple[float, ...]
    # and the t statistic of (worthwhile - difference) above which it is futile
    futility: tuple[float, ...]

    def thresholds(self, seeds: int) -> tuple[float, float] | None:
        """Return both boundaries of the latest analysis reached with ``seeds`` seeds; None before
        the first.
        """
        reached = sum(analysis <= seeds for analysis in self.analyses)
        if reached == 0:
            return None
        return self.efficacy[reached - 1], self.futility[reached - 1]


@dataclass(frozen=True)
class InterimResult:
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
    """Plan interim analyses that distinguish a worthwhile gain from no gain, and their boundaries.

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
            seeds = max_seeds
            if worthwhile:
                seeds = math.ceil(2 * (wide * noise.sd / worthwhile) ** 2 - 1e-9)
            seeds = min(max_seeds, max(_FIRST_ANALYSIS_SEEDS, seeds))
            efficacy, futility = boundaries(schedule_analyses(seeds), finalists)
            if wide >= efficacy[-1] + futility[-1] - 1e-9:
                break
            wide = efficacy[-1] + futility[-1]
    analyses = schedule_analyses(seeds)
    return Design(analyses, finalists, worthwhile, *boundaries(analyses, finalists))


def schedule_analyses(seeds: int) -> tuple[int, ...]:
    """Spread at most ``_MAX_ANALYSES`` interim analyses evenly, starting at
    ``_FIRST_ANALYSIS_SEEDS`` seeds.
    """
    count = max(1, min(_MAX_ANALYSES, seeds - _FIRST_ANALYSIS_SEEDS + 1))
    places = np.linspace(_FIRST_ANALYSIS_SEEDS, seeds, count) if count > 1 else np.array([seeds])
    return tuple(int(place) for place in np.round(places))


@functools.lru_cache(maxsize=64)
def boundaries(
    analyses: tuple[int, ...], finalists: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the boundaries of both tests at every interim analysis, from `null_paths`."""
    fractions = np.array(analyses) / analyses[-1]
    paths = null_paths(analyses, finalists)
    # As many degrees of freedom as at the first analysis, where most false positives are reported.
    claims = level(finalists * (analyses[0] - 1))
    efficacy = spend(paths.max(axis=2), claims * fractions ** _SPENDING_EXPONENTS[0])
    # Each finalist is dropped on its own, with the noise of its own differences: it may be noisier
    # than the rest.
    futility = spend(
        null_paths(analyses, 1)[:, :, 0], FUTILITY_ERROR * fractions ** _SPENDING_EXPONENTS[1]
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
            squares += arms * scores.var(axis=1)  # around the mean of the seed
        seeds = analysis
        noise = (squares - arms * sums.var(axis=1) / seeds) / (finalists * (seeds - 1))
        gains = (sums[:, 1:] - sums[:, :1]) / seeds
        statistics[:, place] = gains / np.sqrt(2 * noise / seeds)[:, None]
    return statistics


def spend(statistics: Vector, spent: ArrayLike) -> Vector:
    """Return boundaries [analyses] such that null paths [paths, analyses] first cross each with the
    probability to be spent there.

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


def interim_results(
    design: Design, scores: Scores, baseline: str, mode: Mode
) -> list[InterimResult]:
    """Return the result of each finalist at the latest interim analysis that its seeds have
    reached.
    """
    gains = oriented(scores, 1.0 if mode == "max" else -1.0)
    decided = []
    for decision in compare(gains, baseline, design.thresholds).estimates:
        low, high = decision.interval or (None, None)
        outcome: Decision = "open"
        if decision.interval is not None and decision.seeds >= MIN_SEEDS:
            outcome = decide(*decision.interval, design.worthwhile)
        decided.append(
            InterimResult(decision.name, decision.seeds, decision.gain, low, high, outcome)
        )
    return decided


def decide(low: float, high: float, worthwhile: float) -> Decision:
    """Return the decision that the bounds of a gain allow."""
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "not better" if high < worthwhile else "open"
