"""Compare finalists with a baseline in rounds of fresh seeds, with early stopping: the plan of a
group-sequential test (`group_sequential`), and its results.

Each interim analysis is the test of `comparison` at the boundaries of the plan.
"""

import math
from dataclasses import dataclass, replace

from dashboards.fresh_seeds import MIN_SEEDS
from dashboards.statistics.comparison import compare
from dashboards.statistics.difference import Difference, Outcome
from dashboards.statistics.failures import imputed_for_stopping
from dashboards.statistics.group_sequential import (
    FIRST_ANALYSIS_SEEDS,
    boundaries,
    decide,
    schedule_analyses,
)
from dashboards.statistics.seed_noise import (
    Noise,
    Scores,
    finite_scores,
    oriented,
    require_baseline,
)
from dashboards.trial import Mode, sign_of


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

    def thresholds(self, seeds: int) -> tuple[float, float] | None:
        """Return both boundaries of the latest analysis reached with ``seeds`` seeds; None before
        the first.
        """
        reached = sum(analysis <= seeds for analysis in self.analyses)
        if reached == 0:
            return None
        return self.efficacy[reached - 1], self.futility[reached - 1]


def make_design(noise: Noise | None, worthwhile: float, finalists: int, max_seeds: int) -> Design:
    """Plan interim analyses that distinguish a worthwhile gain from no gain, and their boundaries.

    Args:
        noise: noise of a score between seeds, from earlier trials; if None, analyses go up to
            ``max_seeds``.
        worthwhile: the smallest difference that matters.
        finalists: configurations other than the baseline.
        max_seeds: upper limit on seeds, even if the design needs more.
    """
    seeds = max_seeds
    if noise is not None and noise.dof:
        # The last analysis always decides: its two bounds are `worthwhile` apart.
        wide = 3.4
        for _ in range(4):
            seeds = max_seeds
            if worthwhile:
                seeds = math.ceil(2 * (wide * noise.sd / worthwhile) ** 2 - 1e-9)
            seeds = min(max_seeds, max(FIRST_ANALYSIS_SEEDS, seeds))
            efficacy, futility = boundaries(schedule_analyses(seeds), finalists)
            if wide >= efficacy[-1] + futility[-1] - 1e-9:
                break
            wide = efficacy[-1] + futility[-1]
    analyses = schedule_analyses(seeds)
    return Design(analyses, finalists, worthwhile, *boundaries(analyses, finalists))


def interim_results(design: Design, scores: Scores, baseline: str, mode: Mode) -> list[Difference]:
    """Return the difference of each finalist at the latest interim analysis that its seeds have
    reached. Its interval follows from the boundaries of the plan; it has no p value.
    """
    gains = oriented(scores, sign_of(mode))
    require_baseline(finite_scores(gains), baseline)
    counted = imputed_for_stopping(gains, baseline)
    results = []
    for each in compare(counted, baseline, design.thresholds).differences:
        outcome: Outcome = "undecided"
        if each.interval is not None and each.seeds >= MIN_SEEDS:
            outcome = decide(*each.interval, design.worthwhile)
        results.append(replace(each, outcome=outcome))
    return results
