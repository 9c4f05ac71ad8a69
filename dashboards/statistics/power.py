"""The power of a verdict: the smallest detectable gain, and the seeds that a gain takes."""

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from dashboards.statistics.dunnett import LEVEL
from dashboards.statistics.guards import Variances, critical_values, difference_noise

Vector = NDArray[np.float64]

MAX_SEEDS = 100  # more seeds per configuration are not worth naming
_DRAWS = 20_000  # of the noise that a verdict estimates; the power is then good to 0.003
_NODES = 80  # of a quadrature
_POWER = 0.8


def minimum_detectable_effect(deviation: float, seeds: int, configurations: int = 2) -> float:
    """The smallest true gain over the baseline that the verdict on a search finds 8 times in 10.

    Args:
        deviation: of one score between seeds, e.g. the standard deviation of baseline replicates.
        seeds: per configuration, at least 2.
        configurations: with the baseline. For two of them this is the power of the one-sided paired t test.
    """
    if seeds < 2 or configurations < 2:
        raise ValueError("noise can be told from effect with at least 2 seeds of 2 configurations")
    if configurations == 2:
        return detectable_alone(deviation, seeds)
    return deviation * math.sqrt(2 / seeds) * _detectable_t(seeds, configurations)


def detectable_alone(deviation: float, seeds: int, known_freedom: int = 0, comparisons: int = 1) -> float:
    """The smallest true gain that the verdict on fresh seeds finds 8 times in 10.

    Other seeds tell the noise of the difference with ``known_freedom`` degrees; ``comparisons`` counts finalists.
    """
    return deviation * math.sqrt(2 / seeds) * _detectable_alone(seeds - 1 + known_freedom, comparisons)


def seeds_for(effect: float, deviation: float, configurations: int = 2, known_freedom: int = 0) -> int | None:
    """Fewest seeds per configuration with which a true gain ``effect`` is found 8 times in 10.

    None above ``MAX_SEEDS`` or for no effect. ``known_freedom`` counts for two configurations, on fresh seeds.
    """

    def enough(seeds: int) -> bool:
        if configurations == 2:
            return detectable_alone(deviation, seeds, known_freedom) <= effect
        return minimum_detectable_effect(deviation, seeds, configurations) <= effect

    if effect <= 0 or not enough(MAX_SEEDS):
        return None
    low, high = 1, MAX_SEEDS  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def assurance(gain: tuple[float, float], deviation: float, seeds: int, known_freedom: int = 0) -> float:
    """Chance that one finalist's fresh seeds find a gain, over all that its true gain may be.

    The true gain is normal, of mean and standard deviation ``gain``; the rest is as in `detectable_alone`.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    shifts = (gain[0] + gain[1] * nodes) / (deviation * math.sqrt(2 / seeds))
    return float(weights / weights.sum() @ _found(shifts, seeds - 1 + known_freedom, LEVEL))


@functools.cache
def _detectable_alone(freedom: int, comparisons: int) -> float:
    """The gain, in true standard errors, that a t test finds 8 times in 10."""
    level = LEVEL / comparisons

    def lacking(shift: float) -> float:
        return float(_found(np.array([shift]), freedom, level)[0]) - _POWER

    return float(optimize.brentq(lacking, 0.0, 5 * stats.t.isf(level, freedom) + 10, xtol=1e-6))


def _found(shifts: Vector, freedom: int, level: float) -> Vector:
    """Power of a one-sided t test for true gains in standard errors."""
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    deviations = np.sqrt(stats.chi2.ppf((points + 1) / 2, freedom) / freedom)
    inside = special.ndtr(shifts[:, None] - stats.t.isf(level, freedom) * deviations)
    return np.asarray(inside @ weights / 2)


@functools.cache
def _detectable_t(seeds: int, configurations: int) -> float:
    """The gain, in true standard errors, whose t statistic exceeds the critical value 8 times in 10."""
    needed = _needed_t(configurations, seeds)

    def lacking(shift: float) -> float:
        return float(special.ndtr(shift - needed).mean()) - _POWER

    return float(optimize.brentq(lacking, 0.0, 10 * float(needed.mean()) + 10, xtol=1e-6))


def _needed_t(configurations: int, seeds: int) -> Vector:
    """Draws of the difference that a verdict asks for, in true standard errors, of three configurations or more.

    With u and w the baseline and the best minus the mean of all but the baseline, seed by seed, the variances
    that `difference_noise` weighs are sums of squares of u, of w, of their difference, and of what is left.
    """
    generator, repeats, others = np.random.default_rng(1), seeds - 1, configurations - 1
    u = generator.standard_normal((_DRAWS, repeats))
    w = generator.standard_normal((_DRAWS, repeats))
    own = w * math.sqrt((others - 1) / others) - u * math.sqrt(configurations / others)
    others_freedom = (others - 1) * repeats
    left = generator.chisquare((others - 2) * repeats, _DRAWS) if others > 2 else 0.0
    of_others, of_base = (w**2).sum(axis=1) + left, (u**2).sum(axis=1)
    other_variance = of_others / others_freedom
    found = Variances(
        pooled=(of_others + of_base) / (others * repeats),
        freedom=others * repeats,
        own=(own**2).sum(axis=1) / repeats,
        base=np.maximum(0, configurations / others * of_base / repeats - other_variance / others),
        base_freedom=repeats,
        others=other_variance,
        others_freedom=others_freedom,
    )
    deviation, freedoms = difference_noise(found, others)
    return np.asarray(deviation / math.sqrt(2) * critical_values(others, freedoms))
