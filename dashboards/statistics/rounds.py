"""Compare finalists with a baseline in rounds of fresh seeds, with early stopping: the plan of a
group-sequential test (`group_sequential`), and its results.

Each interim analysis applies the test of `comparison` with the boundaries of the plan. With few
seeds the statistics are far from normal, so the boundaries are simulated, with the noise estimated
as in a real analysis.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dashboards.fresh_seeds import MIN_SEEDS
from dashboards.statistics.comparison import compare
from dashboards.statistics.difference import Difference, Outcome
from dashboards.statistics.dunnett import Vector
from dashboards.statistics.failures import imputed_for_stopping
from dashboards.statistics.group_sequential import (
    Design,
    claim_spending,
    decide,
    futility_spending,
    simulated_boundaries,
)
from dashboards.statistics.levels import level
from dashboards.statistics.seed_noise import (
    Noise,
    Scores,
    finite_scores,
    oriented,
    require_baseline,
)
from dashboards.trial import Mode, sign_of

# probability of dropping a finalist that is better by exactly the worthwhile amount
FUTILITY_ERROR = 0.1
_MAX_ANALYSES = 8
# Seeds at the first interim analysis. Analyses at three and four seeds cause too many false
# positives on public training runs with equal means, and do not add power
# (research/verdict_on_real_runs.py).
FIRST_ANALYSIS_SEEDS = 5
# Sum of the efficacy and the futility boundary of the last analysis, in standard errors: a typical
# value to start from. It changes little with the schedule, so a few iterations suffice.
_TYPICAL_WIDTH = 3.4
_MAX_ITERATIONS = 4
PATHS = 100_000  # simulated confirmations; boundaries are accurate to about 0.01 to 0.02


def make_design(noise: Noise | None, worthwhile: float, finalists: int, max_seeds: int) -> Design:
    """Plan interim analyses that distinguish a worthwhile gain from no gain, and their boundaries.

    Args:
        noise: noise of a score between seeds, from earlier trials; if None or without degrees of
            freedom, analyses go up to ``max_seeds``.
        worthwhile: the smallest difference that matters.
        finalists: configurations other than the baseline.
        max_seeds: upper limit on seeds, even if the design needs more.
    """
    seeds = max_seeds
    if noise is not None and noise.dof and worthwhile:
        seeds = _seeds_of_last_analysis(noise.sd, worthwhile, finalists, max_seeds)
    analyses = schedule_analyses(seeds)
    return Design(analyses, finalists, worthwhile, *boundaries(analyses, finalists))


def _seeds_of_last_analysis(sd: float, worthwhile: float, finalists: int, max_seeds: int) -> int:
    """Return the number of seeds with which the last analysis always decides if the noise is
    ``sd``: every gain is then large enough to find a finalist better, or small enough to drop it.
    ``max_seeds`` if that takes more seeds.

    The boundaries depend on the schedule of the analyses, and the schedule on the number of seeds,
    so the two are computed alternately.
    """
    width = _TYPICAL_WIDTH
    for _ in range(_MAX_ITERATIONS):
        wanted = math.ceil(2 * (width * sd / worthwhile) ** 2 - 1e-9)
        seeds = min(max_seeds, max(FIRST_ANALYSIS_SEEDS, wanted))
        efficacy, futility = boundaries(schedule_analyses(seeds), finalists)
        needed_width = efficacy[-1] + futility[-1]
        if width >= needed_width - 1e-9:
            break
        width = needed_width
    return seeds


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
    # The level is for the degrees of freedom of the first analysis, where most false positives
    # occur.
    claims = claim_spending(level(finalists * (analyses[0] - 1)))
    efficacy = simulated_boundaries(
        null_paths(analyses, finalists).max(axis=2), claims.by(fractions)
    )
    # Each finalist is dropped independently, based on the noise of its own differences: it may be
    # noisier than the others.
    futility = simulated_boundaries(
        null_paths(analyses, 1)[:, :, 0], futility_spending(FUTILITY_ERROR).by(fractions)
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


def interim_results(design: Design, scores: Scores, baseline: str, mode: Mode) -> list[Difference]:
    """Return the difference of each finalist at the latest interim analysis that its seeds have
    reached. Its interval follows from the boundaries of the plan; it has no p value. Before the
    first analysis, there is no interval either.

    Raises:
        ValueError: the baseline has no score.
    """
    gains = oriented(scores, sign_of(mode))
    require_baseline(finite_scores(gains), baseline)
    counted = imputed_for_stopping(gains, baseline)
    results = []
    for each in compare(counted, baseline, design.thresholds).differences:
        outcome: Outcome = "undecided"
        if each.interval is not None and each.seeds >= MIN_SEEDS:
            outcome = decide(each.interval, design.worthwhile)
        results.append(replace(each, outcome=outcome))
    return results
