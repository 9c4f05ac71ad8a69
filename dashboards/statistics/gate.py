"""Decide whether one proposed change is better than the baseline, with as few runs as possible.

The proposal gets one seed first and more only while its gain may still be worthwhile. After each
interim analysis it is kept, discarded, or needs more seeds. Two one-sided group-sequential tests
[Biometrika 70, 1983] run side by side. One tests whether the gain is above 0, at the level that the
campaign allows (`online_levels`). The other tests whether it is below the smallest worthwhile gain.
The second is non-binding: continuing after it does not affect the error rate of the first.

The seed noise and the correlation of two configurations on the same seed are estimated from all
runs of the campaign. The baseline's runs on other seeds are used as well: with correlation r of two
scores on one seed, the gain is estimated by

    gain = mean(x on its n seeds) - r mean(b on these seeds) - (1 - r) mean(b on all M seeds)
    variance / sd^2 = (1 - r^2) / n + (1 - r)^2 / M

which is the paired difference for r = 1 or n = M, and the difference of means for r = 0.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

GateOutcome = Literal["keep", "discard", "more"]
Runs = Mapping[int, float]  # seed -> score; larger is better

# number of seeds of a proposal at each interim analysis
ANALYSES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
# Minimum number of seeds to keep a proposal. With three, the noise of a proposal that varies more
# than others is underestimated too often: a fifth of the campaigns on PPO trainings without any
# gain kept a proposal.
FIRST_CLAIM = 8
OWN_VARIATION = 3  # minimum number of seeds to use the proposal's own variance
FUTILITY_ERROR = 0.2  # probability of discarding a gain of exactly the worthwhile size
_KEEP_SPENDING = 1.0  # exponents of the fraction of information in the two spending functions
_DISCARD_SPENDING = 0.7
_GRID = 301  # points of the numerical integration
_INFLATION = 1.08
_RANGE = 8.0  # range of the grid, in standard deviations


@dataclass(frozen=True, kw_only=True)
class SeedModel:
    """The variation of scores between seeds, estimated from all runs of a campaign."""

    sd: float  # standard deviation of a score between seeds
    # correlation of the scores of two configurations on the same seed, 0 to 0.95
    correlation: float
    dof: int  # degrees of freedom of ``sd``


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The interim decision on a proposal. All values are gains: larger is better."""

    outcome: GateOutcome
    gain: float  # estimate
    error: float  # its standard error
    low: float  # lower bound; if it is above 0, the proposal is kept
    high: float  # upper bound; below the worthwhile gain the proposal is discarded
    seeds: int  # number of seeds of the proposal
    next_seeds: int  # number of seeds at the next interim analysis; equals ``seeds`` if decided
    most_seeds: int  # number of seeds at the last interim analysis
    level: float  # significance level of the proposal


def seed_model(arms: Sequence[Runs], pairs: Sequence[tuple[Runs, Runs]]) -> SeedModel | None:
    """Estimate the variation between seeds; None if no arm has two runs.

    Args:
        arms: runs of each configuration; deviations are taken from the mean of each.
        pairs: runs of a proposal and of its baseline, for the correlation on shared seeds.
    """
    return pooled_model(
        [variation(runs) for runs in arms],
        [covariation(proposal, baseline) for proposal, baseline in pairs],
    )


def variation(runs: Runs) -> tuple[float, int]:
    """Return the sum of squared deviations of one configuration's scores, and its dof."""
    scores = np.array(list(runs.values()))
    return float(((scores - scores.mean()) ** 2).sum()), len(scores) - 1


def covariation(proposal: Runs, baseline: Runs) -> tuple[float, int]:
    """Return the sum of products of the deviations of two configurations on shared seeds, and its
    degrees of freedom; 0 for fewer than two shared seeds.
    """
    shared = sorted(set(proposal) & set(baseline))
    if len(shared) < 2:
        return 0.0, 0
    first = np.array([proposal[seed] for seed in shared])
    second = np.array([baseline[seed] for seed in shared])
    return float(((first - first.mean()) * (second - second.mean())).sum()), len(shared) - 1


def pooled_model(
    variations: Sequence[tuple[float, int]], covariations: Sequence[tuple[float, int]]
) -> SeedModel | None:
    """Return the model estimated from `variation` and `covariation` sums; None without degrees of
    freedom.
    """
    dof = sum(part[1] for part in variations)
    if not dof:
        return None
    variance = sum(part[0] for part in variations) / dof
    shared_dof = sum(part[1] for part in covariations)
    correlation = 0.0
    if shared_dof and variance > 0:
        # A few pairs estimate a correlation poorly, and overestimating it causes false keeps.
        shrunk = shared_dof / (shared_dof + _PRIOR_PAIRS)
        products = sum(part[0] for part in covariations)
        correlation = min(max(shrunk * products / shared_dof / variance, 0.0), _MOST_CORRELATED)
        correlation = math.floor(correlation / _CORRELATION_STEP) * _CORRELATION_STEP
    return SeedModel(sd=math.sqrt(variance), correlation=correlation, dof=dof)


_PRIOR_PAIRS = 10
_MOST_CORRELATED = 0.9
_CORRELATION_STEP = 0.1  # rounding step, which limits the number of boundaries to compute


def relative_variance(seeds: int, baseline_seeds: int, correlation: float) -> float:
    """Return the variance of the estimated gain in units of sd^2 (equation in the module)."""
    baseline_seeds = max(baseline_seeds, seeds)
    return (1 - correlation**2) / seeds + (1 - correlation) ** 2 / baseline_seeds


@functools.lru_cache(maxsize=4096)
def boundaries(information: tuple[float, ...], level: float, exponent: float) -> tuple[float, ...]:
    """Return the critical z values of the interim analyses, such that without an effect any of them
    is exceeded with probability ``level``.

    Args:
        information: 1 / variance at each analysis, ascending.
        level: total probability; ``level * fraction**exponent`` is spent by a fraction of the
            information.
        exponent: exponent of the spending function.
    """
    spent = level * (np.array(information) / information[-1]) ** exponent
    bounds: list[float] = []
    score: NDArray[np.float64] | None = None  # grid of the score statistic z * sqrt(information)
    density = np.empty(0)
    for place, amount in enumerate(information):
        to_spend = spent[place] - (spent[place - 1] if place else 0.0)
        if score is None:
            bound = float(special.ndtri(1 - to_spend))
            grid = np.linspace(-_RANGE, bound, _GRID) * math.sqrt(amount)
            density = np.exp(-(grid**2) / (2 * amount)) / math.sqrt(2 * math.pi * amount)
        else:
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


def _trapezoid(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.full(len(grid), grid[1] - grid[0])
    weights[[0, -1]] /= 2
    return weights


def _solve(
    score: NDArray[np.float64],
    weights: NDArray[np.float64],
    spread: float,
    scale: float,
    to_spend: float,
) -> float:
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


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Interim analyses of a proposal, with the critical z value of each."""

    seeds: tuple[int, ...]
    keep: tuple[float, ...]  # critical values of the gain; infinite before `FIRST_CLAIM` seeds
    discard: tuple[float, ...]  # critical values of (worthwhile - gain)


def make_schedule(
    *, model: SeedModel, worthwhile: float, level: float, baseline_seeds: int, most_seeds: int
) -> Schedule:
    """Plan interim analyses until a worthwhile gain can be distinguished from no gain.

    The last analysis is the first that distinguishes a worthwhile gain from no gain, or the one at
    ``most_seeds``.
    """
    level = _round_down(level)
    # Sequential boundaries are slightly wider than the boundary of a single analysis.
    needed = _INFLATION * float(-special.stdtrit(model.dof, level) - special.ndtri(FUTILITY_ERROR))
    seeds: list[int] = []
    information: list[float] = []
    for count in (*(analysis for analysis in ANALYSES if analysis < most_seeds), most_seeds):
        variance = relative_variance(count, baseline_seeds, model.correlation)
        seeds.append(count)
        information.append(round(1 / variance, 6))
        if count >= FIRST_CLAIM and needed * model.sd * math.sqrt(variance) <= worthwhile:
            break
    claims = sum(count >= FIRST_CLAIM for count in seeds)
    keep = [math.inf] * (len(seeds) - claims)
    if claims:
        keep += boundaries(tuple(information[-claims:]), level, _KEEP_SPENDING)
    discard = boundaries(tuple(information), FUTILITY_ERROR, _DISCARD_SPENDING)
    return Schedule(seeds=tuple(seeds), keep=tuple(keep), discard=discard)


def _round_down(level: float) -> float:
    """Round a level down to one of sixteen per decade, so that few boundaries are computed."""
    return float(10 ** (math.floor(16 * math.log10(level)) / 16))


def _as_t(bound: float, dof: int) -> float:
    """Return the quantile of Student's t with the same tail probability as ``bound`` has for a
    normal.
    """
    if math.isinf(bound):
        return bound
    return float(-special.stdtrit(dof, special.ndtr(-bound)))


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
    schedule = make_schedule(
        model=model,
        worthwhile=worthwhile,
        level=level,
        baseline_seeds=len(baseline),
        most_seeds=most_seeds,
    )
    count = len(proposal)
    gain, error = estimate(proposal, baseline, model)
    reached = sum(seeds <= count for seeds in schedule.seeds)
    place = max(reached - 1, 0)
    low = gain - _as_t(schedule.keep[place], model.dof) * error
    high = gain + _as_t(schedule.discard[place], model.dof) * error
    ended = reached == len(schedule.seeds)
    outcome: GateOutcome = "more"
    if reached and low > 0:
        outcome = "keep"
    elif reached and (high < worthwhile or ended):
        outcome = "discard"
    upcoming = count
    if outcome == "more":
        upcoming = schedule.seeds[reached]
    return Answer(
        outcome=outcome,
        gain=gain,
        error=error,
        low=low,
        high=high,
        seeds=count,
        next_seeds=upcoming,
        most_seeds=schedule.seeds[-1],
        level=level,
    )


def estimate(proposal: Runs, baseline: Runs, model: SeedModel) -> tuple[float, float]:
    """Return the estimated gain and its standard error (equation in the module).

    With `OWN_VARIATION` or more seeds, the proposal's own variance is used if it is larger than
    that of the campaign, because a change may make training less stable.
    """
    weight = model.correlation
    own = np.array(list(proposal.values()))
    paired = np.array([baseline[seed] for seed in proposal])
    everything = np.array(list(baseline.values()))
    gain = float(own.mean() - weight * paired.mean() - (1 - weight) * everything.mean())
    count, total = len(own), len(everything)
    per_seed = model.sd**2 * (1 - weight**2)
    if count >= OWN_VARIATION:
        per_seed = max(per_seed, float(np.var(own - weight * paired, ddof=1)))
    variance = per_seed / count + (model.sd * (1 - weight)) ** 2 / total
    return gain, math.sqrt(variance)
