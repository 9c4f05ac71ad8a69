"""Dunnett's one-sided many-to-one test with seeds as blocks.

In all functions, ``comparisons`` is the number of configurations compared with the baseline, and
``dof`` the degrees of freedom of the noise estimate. ``same_seeds`` is true if all configurations
ran on the same seeds.
"""

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from dashboards.statistics.levels import SIGNIFICANCE_LEVEL, level

Vector = NDArray[np.float64]

# nodes and weights for numerical integration
_NORMAL = np.polynomial.hermite_e.hermegauss(80)
_UNIFORM = np.polynomial.legendre.leggauss(80)


def p_value(t: float, comparisons: int, dof: int, *, same_seeds: bool) -> float:
    """Return the probability that the largest t reaches ``t`` when no configuration differs, times
    ``SIGNIFICANCE_LEVEL`` / `level`, at most 1.
    """
    reached = probability_reached(t, comparisons, dof, same_seeds=same_seeds)
    return min(1.0, reached * SIGNIFICANCE_LEVEL / level(dof))


def probability_reached(t: float, comparisons: int, dof: int, *, same_seeds: bool) -> float:
    """Return the probability that the largest t reaches ``t`` when no configuration differs, or an
    upper bound (Bonferroni) if the configurations do not share the same seeds.
    """
    if same_seeds:
        return 1 - _below(t, comparisons, dof)
    return comparisons * float(special.stdtr(dof, -t))


@functools.cache
def critical_value(
    comparisons: int, dof: int, *, same_seeds: bool = True, probability: float | None = None
) -> float:
    """Return the value that the largest t exceeds with a probability of `level` (or of
    ``probability``).

    It is Dunnett's critical value if all configurations share the same seeds, else Bonferroni's.
    """
    exceeding = level(dof) if probability is None else probability
    if not same_seeds:
        return float(special.stdtrit(dof, 1 - exceeding / comparisons))

    def lacking(t: float) -> float:
        return 1 - exceeding - _below(t, comparisons, dof)

    return float(optimize.brentq(lacking, 0.0, 1000.0, xtol=1e-6))


def _below(t: float, comparisons: int, dof: int) -> float:
    """Return the probability that all of k equally correlated t statistics stay below ``t``.

    It is the mean of Phi(sqrt(2) t s + z)^k over the baseline's normal deviate z and the estimated
    deviation s.
    """
    sds, z, weights = _nodes(dof)
    inside = special.ndtr(math.sqrt(2) * t * sds[:, None] + z) ** comparisons
    return float((weights * inside).sum())


@functools.cache
def _nodes(dof: int) -> tuple[Vector, Vector, Vector]:
    z, normal = _NORMAL
    points, uniform = _UNIFORM
    chi_square = 2 * special.gammaincinv(dof / 2, (points + 1) / 2)
    return np.sqrt(chi_square / dof), z, np.outer(uniform / 2, normal / normal.sum())
