"""What a verdict can find: the smallest detectable gain, and the seeds that a gain takes."""

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from dashboards.statistics.guards import Variances, critical_values, difference_noise

Vector = NDArray[np.float64]

DRAWS = 20_000  # of the noise that a verdict estimates; the power is then good to 0.003
POWER = 0.8
MAX_SEEDS = 100  # more seeds per configuration are not worth naming


def minimum_detectable_effect(
    deviation: float, seeds: int, configurations: int = 2, known_freedom: int = 0
) -> float:
    """The smallest true gain over the baseline that a verdict finds 8 times in 10.

    Args:
        deviation: of one score between seeds, e.g. the standard deviation of baseline replicates.
        seeds: per configuration, at least 2.
        configurations: with the baseline. For two of them this is the power of the one-sided paired t test.
        known_freedom: degrees of freedom with which the noise is known from other trials.
    """
    if seeds < 2 or configurations < 2:
        raise ValueError("noise can be told from effect with at least 2 seeds of 2 configurations")
    return deviation * math.sqrt(2 / seeds) * _detectable_t(seeds, configurations, known_freedom)


def seeds_for(effect: float, deviation: float, configurations: int = 2, known_freedom: int = 0) -> int | None:
    """Fewest seeds per configuration with which a true gain ``effect`` is found 8 times in 10.

    None above ``MAX_SEEDS`` or for no effect.
    """

    def enough(seeds: int) -> bool:
        return minimum_detectable_effect(deviation, seeds, configurations, known_freedom) <= effect

    if effect <= 0 or not enough(MAX_SEEDS):
        return None
    low, high = 1, MAX_SEEDS  # too few, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@functools.cache
def _detectable_t(seeds: int, configurations: int, known_freedom: int) -> float:
    """The gain, in true standard errors, whose t statistic exceeds the critical value 8 times in 10."""
    needed = _needed_t(configurations, seeds, known_freedom)

    def lacking(shift: float) -> float:
        return float(stats.norm.cdf(shift - needed).mean()) - POWER

    return float(optimize.brentq(lacking, 0.0, 10 * float(needed.mean()) + 10, xtol=1e-6))


@functools.cache
def _needed_t(configurations: int, seeds: int, known_freedom: int) -> Vector:
    """Draws of the difference that a verdict asks for, in true standard errors.

    With u and w the baseline and the best minus the mean of all but the baseline, seed by seed, the variances
    that `difference_noise` weighs are sums of squares of u, of w, of their difference, and of what is left.
    """
    generator, repeats, others = np.random.default_rng(1), seeds - 1, configurations - 1
    u = generator.standard_normal((DRAWS, repeats))
    if others == 1:
        known = generator.chisquare(known_freedom, DRAWS) if known_freedom else 0.0
        squares = (u**2).sum(axis=1)
        freedom = repeats + known_freedom
        found = Variances((squares + known) / freedom, freedom, 2 * squares / repeats)
    else:
        w = generator.standard_normal((DRAWS, repeats))
        own = w * math.sqrt((others - 1) / others) - u * math.sqrt(configurations / others)
        others_freedom, freedom = (others - 1) * repeats, others * repeats + known_freedom
        left = generator.chisquare((others - 2) * repeats, DRAWS) if others > 2 else 0.0
        known = generator.chisquare(known_freedom, DRAWS) if known_freedom else 0.0
        of_others, of_base = (w**2).sum(axis=1) + left, (u**2).sum(axis=1)
        other_variance = of_others / others_freedom
        base = np.maximum(0, configurations / others * of_base / repeats - other_variance / others)
        found = Variances(
            pooled=(of_others + of_base + known) / freedom,
            freedom=freedom,
            own=(own**2).sum(axis=1) / repeats,
            base=base,
            base_freedom=repeats,
            others=other_variance,
            others_freedom=others_freedom,
        )
    deviation, freedoms = difference_noise(found, others)
    return np.asarray(deviation / math.sqrt(2) * critical_values(others, freedoms))
