"""Many configurations against one baseline: Dunnett's one-sided test with seeds as blocks."""

import functools
import math
from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Vector = NDArray[np.float64]
# the seeds that each compared configuration shares with the baseline
Shared = tuple[frozenset[Hashable], ...]

FALSE_CLAIMS = 0.05  # one-sided: only a gain over the baseline is claimed
# nodes and weights of quadratures
_NORMAL = np.polynomial.hermite_e.hermegauss(80)
_UNIFORM = np.polynomial.legendre.leggauss(80)


def p_value(t: float, shared: Shared, freedom: int) -> float:
    """Return the probability that the largest t reaches ``t`` when no configuration differs."""
    return 1 - _below(t, shared, freedom)


@functools.lru_cache(maxsize=256)
def quantile(shared: Shared, freedom: int) -> float:
    """Return the value that the largest t exceeds with probability ``FALSE_CLAIMS``."""
    if len(set(shared)) == 1:
        return critical_value(len(shared), freedom)
    return _solved(lambda t: _below(t, shared, freedom))


@functools.cache
def critical_value(comparisons: int, freedom: int) -> float:
    """Return Dunnett's one-sided critical value for equally many scores of each configuration."""
    return _solved(lambda t: _below_alike(t, comparisons, freedom))


def _solved(below: Callable[[float], float]) -> float:
    return float(optimize.brentq(lambda t: below(t) - (1 - FALSE_CLAIMS), 0.0, 200.0, xtol=1e-6))


def _below(t: float, shared: Shared, freedom: int) -> float:
    """Return the probability that all t statistics stay below ``t``.

    A mean over n_j shared seeds, minus the baseline's: the correlation of two such differences is
    |S_j and S_k| / (2 sqrt(n_j n_k)), 1/2 where all have the same seeds.
    """
    if len(set(shared)) == 1:
        return _below_alike(t, len(shared), freedom)
    overlap = np.array([[len(ours & theirs) for theirs in shared] for ours in shared], float)
    sizes = np.sqrt(np.diag(overlap))
    correlation = overlap / (2 * np.outer(sizes, sizes)) + np.eye(len(shared)) / 2
    # a second to import, which a sweep without failed seeds does not need
    from scipy import stats

    distribution = stats.multivariate_t(shape=correlation, df=freedom, seed=0)
    return float(distribution.cdf(np.full(len(shared), t)))


def _below_alike(t: float, comparisons: int, freedom: int) -> float:
    """Return the probability that all of k equally correlated t statistics stay below ``t``.

    The mean of Phi(sqrt(2) t s + z)^k over the baseline's normal deviate z and the estimated
    deviation s.
    """
    deviations, z, weights = _nodes(freedom)
    inside = special.ndtr(math.sqrt(2) * t * deviations[:, None] + z) ** comparisons
    return float((weights * inside).sum())


@functools.cache
def _nodes(freedom: int) -> tuple[Vector, Vector, Vector]:
    z, normal = _NORMAL
    points, uniform = _UNIFORM
    chi_square = 2 * special.gammaincinv(freedom / 2, (points + 1) / 2)
    return np.sqrt(chi_square / freedom), z, np.outer(uniform / 2, normal / normal.sum())
