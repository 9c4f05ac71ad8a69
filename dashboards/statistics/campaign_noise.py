"""Model the seed noise of a gate campaign, and estimate the gain of a proposal.

The seed noise and the correlation of two configurations on the same seed are estimated from all
runs of the campaign. The baseline's runs on other seeds are used as well: with correlation r of two
scores on one seed, the gain is estimated by

    gain = mean(x on its n seeds) - r mean(b on these seeds) - (1 - r) mean(b on all M seeds)
    variance / sd^2 = (1 - r^2) / n + (1 - r)^2 / M

which is the paired difference for r = 1 or n = M, and the difference of means for r = 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dashboards.statistics.rounding import variance

Runs = Mapping[int, float]  # seed -> score; larger is better

OWN_VARIATION = 3  # minimum number of seeds to use the proposal's own variance
# A few pairs estimate a correlation poorly, and overestimating it causes false keeps.
_PRIOR_PAIRS = 10
_MOST_CORRELATED = 0.9
_CORRELATION_STEP = 0.1  # rounding step, which limits the number of boundaries to compute


@dataclass(frozen=True, kw_only=True)
class SeedModel:
    """The variation of scores between seeds, estimated from all runs of a campaign."""

    sd: float  # standard deviation of a score between seeds
    # correlation of the scores of two configurations on the same seed, 0 to `_MOST_CORRELATED`
    correlation: float
    dof: int  # degrees of freedom of ``sd``


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
    """Return the sum of squared deviations of one configuration's scores, and its degrees of
    freedom; both are 0 for one run.
    """
    dof = len(runs) - 1
    return dof * variance(runs.values()), dof


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
    of_score = sum(part[0] for part in variations) / dof
    shared_dof = sum(part[1] for part in covariations)
    correlation = 0.0
    if shared_dof and of_score > 0:
        shrunk = shared_dof / (shared_dof + _PRIOR_PAIRS)
        products = sum(part[0] for part in covariations)
        correlation = min(max(shrunk * products / shared_dof / of_score, 0.0), _MOST_CORRELATED)
        correlation = math.floor(correlation / _CORRELATION_STEP) * _CORRELATION_STEP
    return SeedModel(sd=math.sqrt(of_score), correlation=correlation, dof=dof)


def relative_variance(seeds: int, baseline_seeds: int, correlation: float) -> float:
    """Return the variance of the estimated gain in units of sd^2 (see the module's equation).

    Args:
        seeds: number of the proposal's seeds, n.
        baseline_seeds: number of the baseline's seeds, M.
        correlation: correlation of two scores on one seed, r.
    """
    baseline_seeds = max(baseline_seeds, seeds)
    return (1 - correlation**2) / seeds + (1 - correlation) ** 2 / baseline_seeds


def estimate(proposal: Runs, baseline: Runs, model: SeedModel) -> tuple[float, float]:
    """Return the estimated gain and its standard error (see the module's equations).

    Args:
        proposal: at least one run of the proposal.
        baseline: the baseline's runs on all seeds of the proposal, and on any others.
        model: the variation between seeds in the whole campaign. With `OWN_VARIATION` or more
            seeds, the variance of ``x - r b`` on the proposal's seeds is used instead of
            ``(1 - r^2) sd^2`` if it is larger, because a change may make training less stable.
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
    squared_error = per_seed / count + (model.sd * (1 - weight)) ** 2 / total
    return gain, math.sqrt(squared_error)
