"""Dunnett's one-sided many-to-one test with seeds as blocks."""

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Vector = NDArray[np.float64]

SIGNIFICANCE_LEVEL = 0.05  # one-sided, because only improvements over the baseline are claimed
# In `level`: chosen on real trainings, where runs collapse at different rates
# (research/verdict_on_real_runs.py).
_SCARCE = 2
# nodes and weights of quadratures
_NORMAL = np.polynomial.hermite_e.hermegauss(80)
_UNIFORM = np.polynomial.legendre.leggauss(80)


def level(dof: int) -> float:
    """Return the level at which a test on normal scores makes ``SIGNIFICANCE_LEVEL`` on real
    trainings.

    Scores of real trainings are not normal, and a noise estimate with few degrees of freedom cannot
    show it. At a level of 5%, t tests on three seeds have 7 to 8% false positives. With many
    degrees of freedom the level is ``SIGNIFICANCE_LEVEL``.
    """
    return SIGNIFICANCE_LEVEL * dof / (dof + _SCARCE)


def repeats_factor(earlier_confirmations: int) -> int:
    """Return the factor of p-values after earlier confirmations of the same finalists.

    It doubles with each, so all confirmations together report a false improvement with a
    probability below twice the level of one: 1 + 1/2 + 1/4 + ... = 2. Intervals use the level
    divided by it, so an interval excludes 0 exactly if p is significant.
    """
    return int(2**earlier_confirmations)


def coverage(repeats: int = 1) -> float:
    """Return the coverage of a two-sided interval whose level is divided by ``repeats``."""
    return 1 - 2 * SIGNIFICANCE_LEVEL / repeats


def p_value(t: float, comparisons: int, dof: int, *, same_seeds: bool) -> float:
    """Return the probability that the largest t reaches ``t`` when no configuration differs, times
    ``SIGNIFICANCE_LEVEL`` / `level`, at most 1.
    """
    if same_seeds:
        p = 1 - _below(t, comparisons, dof)
    else:
        p = comparisons * float(special.stdtr(dof, -t))
    return min(1.0, p * SIGNIFICANCE_LEVEL / level(dof))


@functools.cache
def critical_value(
    comparisons: int, dof: int, *, same_seeds: bool = True, probability: float | None = None
) -> float:
    """Return the value that the largest t exceeds with a probability of `level` (or of
    ``probability``).

    Dunnett's if all configurations share the same seeds, else Bonferroni's.
    """
    exceeding = level(dof) if probability is None else probability
    if not same_seeds:
        return float(special.stdtrit(dof, 1 - exceeding / comparisons))

    def lacking(t: float) -> float:
        return 1 - exceeding - _below(t, comparisons, dof)

    return float(optimize.brentq(lacking, 0.0, 1000.0, xtol=1e-6))


def _below(t: float, comparisons: int, dof: int) -> float:
    """Return the probability that all of k equally correlated t statistics stay below ``t``.

    The mean of Phi(sqrt(2) t s + z)^k over the baseline's normal deviate z and the estimated
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
