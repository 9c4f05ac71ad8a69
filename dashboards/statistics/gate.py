"""Decide whether one proposed change is better than the baseline, with as few runs as possible.

The proposal gets one seed first and more only while its gain may still be worthwhile. After each
interim analysis it is kept, discarded, or needs more seeds. `group_sequential` tests whether the
gain is above 0, at the level that the campaign allows (`online_levels`), and whether it is below
the smallest worthwhile gain. `campaign_noise` estimates the noise and the gain.

Guards are metrics on which the proposal must not be worse. Each is tested in the same analyses at
the same level: whether its loss is below its margin. A proposal is kept at the first analysis at
which its score and all guards pass. A harmful change passes the guard that it violates with a
probability of at most the level, so it is kept with at most this probability (intersection-union
test, `checked_guards`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import special

from dashboards.statistics.campaign_noise import Runs, SeedModel, estimate, relative_variance
from dashboards.statistics.checked_guards import CheckedGuard, GuardState, state_of
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
# than others is underestimated too often: in the worst study of public runs, a fifth of the
# campaigns without any gain kept a proposal (docs/development/validation.md).
FIRST_CLAIM = 8
# Probability of discarding a gain of exactly the worthwhile size. It is larger than for the
# finalists of a sweep (`rounds`), because a stream has further proposals.
FUTILITY_ERROR = 0.2
_INFLATION = 1.08  # sequential boundaries are slightly wider than the boundary of a single analysis


@dataclass(frozen=True, kw_only=True)
class GuardRuns:
    """A guard, and its values in the runs of a proposal and of its baseline."""

    metric: str
    margin: float  # largest tolerated loss, in units of the metric
    sign: int  # -1 if smaller is better
    proposal: Runs  # values of the proposal's runs, signed so that larger is better
    baseline: Runs  # values of the baseline's runs, signed in the same way
    model: SeedModel


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The interim decision on a proposal."""

    difference: Difference  # the interval's lower bound is minus infinity before `FIRST_CLAIM`
    # number of seeds at the next interim analysis; None if decided, or after the last analysis
    next_seeds: int | None
    guards: tuple[CheckedGuard, ...] = ()

    @property
    def outcome(self) -> GateOutcome:
        """The decision. A proposal that is undecided after the last analysis is discarded."""
        if self.difference.outcome == "better" and self.guard_state == "holds":
            return "keep"
        return "discard" if self.next_seeds is None else "more"

    @property
    def guard_state(self) -> GuardState:
        """The joint state of all guards; ``holds`` without guards."""
        return state_of(list(self.guards))


def answer(
    proposal: Runs,
    baseline: Runs,
    *,
    model: SeedModel,
    worthwhile: float,
    level: float,
    most_seeds: int,
    guards: Sequence[GuardRuns] = (),
) -> Answer:
    """Return the interim decision on a proposal from its runs so far.

    Args:
        proposal: scores of the proposal by seed.
        baseline: scores of the baseline by seed, on all seeds of the proposal and possibly others.
        model: variation between seeds.
        worthwhile: smallest gain that matters, in units of the score.
        level: significance level of this proposal.
        most_seeds: maximum number of seeds of the proposal.
        guards: metrics on which the proposal must not be worse, in the same runs.

    Raises:
        ValueError: there are no runs, the baseline has no run on a seed of the proposal, or the
            scores do not vary.
    """
    if not proposal or not set(proposal) <= set(baseline):
        raise ValueError("the baseline needs a run on every seed of the proposal")
    if not model.sd > 0:
        raise ValueError("the scores do not vary between seeds")
    plan = _Plan(level=level, baseline_seeds=len(baseline), most_seeds=most_seeds)
    last = plan.last_analysis(model, worthwhile)
    for guard in guards:
        last = max(last, plan.last_analysis(guard.model, guard.margin))
    design = plan.design(model, worthwhile, last)
    difference = _difference(proposal, baseline, model, design, level)
    assert difference.interval is not None
    difference = replace(difference, outcome=decide(difference.interval, worthwhile))
    checked = []
    for guard in guards:
        its_design = plan.design(guard.model, guard.margin, last)
        found = _difference(guard.proposal, guard.baseline, guard.model, its_design, level)
        checked.append(CheckedGuard.of(guard.metric, guard.margin, guard.sign, found))
    state = state_of(checked)
    waits_for_guards = difference.outcome == "better" and state == "undecided"
    next_seeds = None
    if waits_for_guards or (difference.outcome == "undecided" and state != "fails"):
        next_seeds = design.next_analysis(len(proposal))
    return Answer(difference=difference, next_seeds=next_seeds, guards=tuple(checked))


def _difference(
    proposal: Runs, baseline: Runs, model: SeedModel, design: Design, level: float
) -> Difference:
    """Return the gain with its interval at the latest analysis, without a conclusion."""
    seeds = len(proposal)
    gain, error = estimate(proposal, baseline, model)
    bounds = design.thresholds(seeds)
    assert bounds is not None  # the first analysis is at one seed
    # nothing is claimed before `FIRST_CLAIM`, even without noise
    low = gain - bounds[0] * error if math.isfinite(bounds[0]) else -math.inf
    return Difference(
        configuration="proposal",
        baseline="baseline",
        gain=gain,
        seeds=seeds,
        interval=(low, gain + bounds[1] * error),
        level=level,
    )


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """The plan for the interim analyses of one proposal."""

    level: float
    baseline_seeds: int
    most_seeds: int

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of seeds at which an analysis is possible."""
        return (*(count for count in ANALYSES if count < self.most_seeds), self.most_seeds)

    def last_analysis(self, model: SeedModel, worthwhile: float) -> int:
        """Return the number of seeds that distinguishes a worthwhile gain from no gain, at most
        ``most_seeds``.
        """
        level = _round_down(self.level)
        quantiles = -special.stdtrit(model.dof, level) - special.ndtri(FUTILITY_ERROR)
        needed = _INFLATION * float(quantiles) * model.sd
        for count in self.counts:
            variance = relative_variance(count, self.baseline_seeds, model.correlation)
            if count >= FIRST_CLAIM and needed * math.sqrt(variance) <= worthwhile:
                return count
        return self.most_seeds

    def design(self, model: SeedModel, worthwhile: float, last: int) -> Design:
        """Return the analyses up to ``last`` seeds. Nothing is claimed before `FIRST_CLAIM`."""
        seeds = tuple(count for count in self.counts if count <= last)
        information = []
        for count in seeds:
            variance = relative_variance(count, self.baseline_seeds, model.correlation)
            information.append(round(1 / variance, 6))
        keep, discard = boundaries(seeds, tuple(information), _round_down(self.level))
        return Design(
            analyses=seeds,
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

    Args:
        seeds: number of seeds at each analysis.
        information: 1 / variance of the gain at each analysis, in units of 1 / sd^2.
        level: significance level for keeping.
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
