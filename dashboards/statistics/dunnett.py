"""Many configurations against one baseline: Dunnett's test with seeds as blocks, and its power."""

import functools
import math
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Vector = NDArray[np.float64]

DRAWS = 100_000  # of the largest of several t statistics; its 95 % quantile is then good to about 0.01
MAX_SEEDS = 100  # more seeds per configuration are not worth naming


@functools.lru_cache(maxsize=32)
def largest_t(shared: tuple[frozenset[Hashable], ...], freedom: int) -> Vector:
    """Draws of the largest |t| of differences to one baseline, when none differs in truth.

    Args:
        shared: for each compared configuration, the seeds it shares with the baseline.
        freedom: degrees of freedom of the common noise estimate.
    """
    # A mean over n_j shared seeds, minus the baseline's: the correlation of two such differences is
    # |S_j and S_k| / (2 sqrt(n_j n_k)), 1/2 where all have the same seeds.
    overlap = np.array([[len(one & other) for other in shared] for one in shared], float)
    sizes = np.sqrt(np.diag(overlap))
    correlation = overlap / (2 * np.outer(sizes, sizes)) + np.eye(len(shared)) / 2
    generator = np.random.default_rng(0)
    normal = generator.standard_normal((DRAWS, len(shared))) @ np.linalg.cholesky(correlation).T
    largest: Vector = np.abs(normal).max(axis=1) / np.sqrt(generator.chisquare(freedom, DRAWS) / freedom)
    return largest


def minimum_detectable_effect(
    deviation: float, seeds: int, configurations: int = 2, alpha: float = 0.05, power: float = 0.8
) -> float:
    """The smallest true difference to the baseline that a verdict finds with probability ``power``.

    Args:
        deviation: of one score between seeds, e.g. the standard deviation of baseline replicates.
        seeds: per configuration, at least 2.
        configurations: with the baseline. For two of them this is the paired t test's power exactly.
        alpha: two-sided level, corrected for the best of ``configurations - 1``.
        power: wanted probability.
    """
    if seeds < 2 or configurations < 2:
        raise ValueError("noise can be told from effect with at least 2 seeds of 2 configurations")
    return deviation * math.sqrt(2 / seeds) * _detectable_t(seeds, configurations, alpha, power)


def seeds_for(effect: float, deviation: float, configurations: int = 2) -> int | None:
    """Fewest seeds per configuration with which a true difference ``effect`` is found 8 times in 10.

    None above ``MAX_SEEDS`` or for no effect.
    """
    if effect <= 0 or minimum_detectable_effect(deviation, MAX_SEEDS, configurations) > effect:
        return None
    low, high = 1, MAX_SEEDS  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        enough = minimum_detectable_effect(deviation, middle, configurations) <= effect
        low, high = (low, middle) if enough else (middle, high)
    return high


@functools.cache
def _detectable_t(seeds: int, configurations: int, alpha: float, power: float) -> float:
    """The difference, in true standard errors, whose t statistic exceeds the critical value with ``power``."""
    critical = _critical_value(configurations - 1, (configurations - 1) * (seeds - 1), alpha)
    errors = _relative_errors(configurations, seeds)

    def lacking(shift: float) -> float:
        return float(stats.norm.cdf(shift - critical * errors).mean()) - power

    return float(optimize.brentq(lacking, 0.0, 10 * critical + 10, xtol=1e-6))


@functools.cache
def _critical_value(comparisons: int, freedom: int, alpha: float) -> float:
    """Dunnett's two-sided critical value for equally many scores of each configuration."""
    return float(np.quantile(largest_t((frozenset([0]),) * comparisons, freedom), 1 - alpha))


@functools.cache
def _relative_errors(configurations: int, seeds: int) -> Vector:
    """Draws of the standard error that `dashboards.statistics.seed_noise.verdict` uses over the true one.

    The own variance of one difference is the part of the pooled variance with ``seeds - 1`` of its
    ``(configurations - 1) * (seeds - 1)`` degrees of freedom; the larger of the two counts.
    """
    generator = np.random.default_rng(1)
    own_freedom = seeds - 1
    own = generator.chisquare(own_freedom, 20_000)
    rest = generator.chisquare((configurations - 2) * own_freedom, 20_000) if configurations > 2 else 0.0
    pooled = (own + rest) / ((configurations - 1) * own_freedom)
    return np.sqrt(np.maximum(pooled, own / own_freedom))
