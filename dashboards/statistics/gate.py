"""Decide whether one proposed change is better than the baseline, with as few runs as possible.

The proposal gets one seed first and more only while its gain may still be worthwhile. After each
interim analysis it is kept, discarded, or needs more seeds. The test is that of `group_sequential`:
whether the gain is above 0, at the level that the campaign allows (`online_levels`), and whether it
is below the smallest worthwhile gain. Noise and gain are those of `campaign_noise`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import special

from dashboards.statistics.campaign_noise import Runs, SeedModel, estimate, relative_variance
from dashboards.statistics.difference import Difference
from dashboards.statistics.group_sequential import (
    Design,
    claim_spending,
    decide,
    futility_spending,
    integrated_boundaries,
)

GateOutcome = Literal["keep", "discard", "more"]

# number of seeds of a proposal at each interim analysis
ANALYSES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# Minimum number of seeds to keep a proposal. With three, the noise of a proposal that varies more
# than others is underestimated too often: a fifth of the campaigns on PPO trainings without any
# gain kept a proposal.
FIRST_CLAIM = 8
# Probability of discarding a gain of exactly the worthwhile size. A stream has other proposals, so
# it is larger than that of the finalists of a sweep (`rounds`).
FUTILITY_ERROR = 0.2
_INFLATION = 1.08  # sequential boundaries are slightly wider than that of a single analysis


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The interim decision on a proposal."""

    difference: Difference  # the interval's lower bound is minus infinity before `FIRST_CLAIM`
    next_seeds: int | None  # number of seeds at the next interim analysis; None if decided

    @property
    def outcome(self) -> GateOutcome:
        """What comes of the proposal. One that the last analysis leaves undecided is discarded."""
        if self.difference.outcome == "better":
            return "keep"
        return "discard" if self.next_seeds is None else "more"


def answer(
    proposal: Runs,
    baseline: Runs,
    *,
    model: SeedModel,
    worthwhile: float,
    level: float,
    most_seeds: int,
) -> Answer:
    """Return the interim decision on a proposal from its runs so far.

    Args:
        proposal: scores of the proposal by seed.
        baseline: scores of the baseline by seed, on all seeds of the proposal and possibly others.
        model: variation between seeds.
        worthwhile: smallest gain that matters, in units of the score.
        level: significance level of this proposal.
        most_seeds: maximum number of seeds of the proposal.

    Raises:
        ValueError: there are no runs, the baseline has no run on a seed of the proposal, or the
            scores do not vary.
    """
    if not proposal or not set(proposal) <= set(baseline):
        raise ValueError("the baseline needs a run on every seed of the proposal")
    if not model.sd > 0:
        raise ValueError("the scores do not vary between seeds")
    design = make_design(
        model=model,
        worthwhile=worthwhile,
        level=level,
        baseline_seeds=len(baseline),
        most_seeds=most_seeds,
    )
    seeds = len(proposal)
    gain, error = estimate(proposal, baseline, model)
    bounds = design.thresholds(seeds)
    assert bounds is not None  # the first analysis is at one seed
    interval = gain - bounds[0] * error, gain + bounds[1] * error
    outcome = decide(interval, worthwhile)
    difference = Difference(
        configuration="proposal",
        baseline="baseline",
        gain=gain,
        seeds=seeds,
        interval=interval,
        level=level,
        outcome=outcome,
    )
    next_seeds = design.next_analysis(seeds) if outcome == "undecided" else None
    return Answer(difference=difference, next_seeds=next_seeds)


def make_design(
    *, model: SeedModel, worthwhile: float, level: float, baseline_seeds: int, most_seeds: int
) -> Design:
    """Plan interim analyses until a worthwhile gain can be distinguished from no gain.

    The last analysis is the first that distinguishes a worthwhile gain from no gain, or the one at
    ``most_seeds``. Nothing is claimed before `FIRST_CLAIM` seeds.
    """
    level = _round_down(level)
    needed = _INFLATION * float(-special.stdtrit(model.dof, level) - special.ndtri(FUTILITY_ERROR))
    seeds: list[int] = []
    information: list[float] = []
    for count in (*(analysis for analysis in ANALYSES if analysis < most_seeds), most_seeds):
        variance = relative_variance(count, baseline_seeds, model.correlation)
        seeds.append(count)
        information.append(round(1 / variance, 6))
        if count >= FIRST_CLAIM and needed * model.sd * math.sqrt(variance) <= worthwhile:
            break
    keep, discard = boundaries(tuple(seeds), tuple(information), level)
    return Design(
        analyses=tuple(seeds),
        finalists=1,
        worthwhile=worthwhile,
        efficacy=_as_t(keep, model.dof),
        futility=_as_t(discard, model.dof),
    )


def boundaries(
    seeds: tuple[int, ...], information: tuple[float, ...], level: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the critical z values for keeping and for discarding a proposal at each interim
    analysis; infinite where nothing is kept.
    """
    claims = sum(count >= FIRST_CLAIM for count in seeds)
    keep = (math.inf,) * (len(seeds) - claims)
    if claims:
        keep += integrated_boundaries(information[-claims:], claim_spending(level))
    return keep, integrated_boundaries(information, futility_spending(FUTILITY_ERROR))


def _round_down(level: float) -> float:
    """Round a level down to one of sixteen per decade, so that few boundaries are computed."""
    return float(10 ** (math.floor(16 * math.log10(level)) / 16))


def _as_t(bounds: tuple[float, ...], dof: int) -> tuple[float, ...]:
    """Return the quantiles of Student's t with the same tail probabilities as ``bounds`` have for
    a normal.
    """
    z = np.array(bounds)
    t = -special.stdtrit(dof, special.ndtr(-z))
    # SciPy's quantile at probability 0 is plus infinity.
    quantiles: list[float] = np.where(np.isinf(z), z, t).tolist()
    return tuple(quantiles)
