"""Dunnett's one-sided many-to-one test with seeds as blocks."""

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Vector = NDArray[np.float64]

FALSE_CLAIMS = 0.05  # one-sided, because only improvements over the baseline are claimed
# nodes and weights of quadratures
_NORMAL = np.polynomial.hermite_e.hermegauss(80)
_UNIFORM = np.polynomial.legendre.leggauss(80)


def p_value(t: float, comparisons: int, freedom: int, *, same_seeds: bool) -> float:
    """Return the probability that the largest t reaches ``t`` when no configuration differs."""
    if same_seeds:
        return 1 - _below(t, comparisons, freedom)
    return min(1.0, comparisons * float(special.stdtr(freedom, -t)))


@functools.cache
def critical_value(comparisons: int, freedom: int, *, same_seeds: bool = True) -> float:
    """Return the value that the largest t exceeds with probability ``FALSE_CLAIMS``.

    Dunnett's if all configurations share the same seeds, else Bonferroni's.
    """
    if not same_seeds:
        return float(special.stdtrit(freedom, 1 - FALSE_CLAIMS / comparisons))

    def lacking(t: float) -> float:
        return 1 - FALSE_CLAIMS - _below(t, comparisons, freedom)

    return float(optimize.brentq(lacking, 0.0, 200.0, xtol=1e-6))


def _below(t: float, comparisons: int, freedom: int) -> float:
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
