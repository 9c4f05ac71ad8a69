"""Many configurations against one baseline: Dunnett's one-sided test with seeds as blocks."""

import functools
import math
from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

Vector = NDArray[np.float64]

DRAWS = 100_000  # of the largest of several t statistics; its 95 % quantile is then good to about 0.01
_NODES = 80  # of a quadrature
LEVEL = 0.05  # one-sided: only a gain over the baseline is claimed


@functools.lru_cache(maxsize=64)
def largest_t(shared: tuple[frozenset[Hashable], ...], freedom: int) -> Vector:
    """Draws of the largest t of differences to one baseline, when none differs in truth.

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
    largest: Vector = normal.max(axis=1) / np.sqrt(generator.chisquare(freedom, DRAWS) / freedom)
    return largest


def p_value(t: float, shared: tuple[frozenset[Hashable], ...], freedom: int) -> float:
    """Probability that the largest t reaches ``t`` when no configuration differs; arguments as in `largest_t`."""
    if len(set(shared)) == 1:
        return 1 - _below(t, len(shared), freedom)
    largest = largest_t(shared, freedom)
    return float((np.sum(largest >= t) + 1) / (len(largest) + 1))


def quantile(shared: tuple[frozenset[Hashable], ...], freedom: int) -> float:
    """The value that the largest t exceeds with probability ``LEVEL``; arguments as in `largest_t`."""
    if len(set(shared)) == 1:
        return critical_value(len(shared), freedom)
    return float(np.quantile(largest_t(shared, freedom), 1 - LEVEL))


@functools.cache
def critical_value(comparisons: int, freedom: int) -> float:
    """Dunnett's one-sided critical value for equally many scores of each configuration."""
    return float(optimize.brentq(lambda t: _below(t, comparisons, freedom) - (1 - LEVEL), 0.0, 200.0, xtol=1e-6))


def _below(t: float, comparisons: int, freedom: int) -> float:
    """Probability that all of k equally correlated t statistics stay below ``t``.

    The mean of Phi(sqrt(2) t s + z)^k over the baseline's normal deviate z and the estimated deviation s.
    """
    deviations, z, weights = _nodes(freedom)
    inside = special.ndtr(math.sqrt(2) * t * deviations[:, None] + z) ** comparisons
    return float((weights * inside).sum())


@functools.cache
def _nodes(freedom: int) -> tuple[Vector, Vector, Vector]:
    z, normal = np.polynomial.hermite_e.hermegauss(_NODES)
    points, uniform = np.polynomial.legendre.leggauss(_NODES)
    deviations = np.sqrt(stats.chi2.ppf((points + 1) / 2, freedom) / freedom)
    return deviations, z, np.outer(uniform / 2, normal / normal.sum())
