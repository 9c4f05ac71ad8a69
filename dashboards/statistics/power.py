"""Power of a verdict: the smallest detectable gain, and the seeds needed to detect a gain."""

import bisect
import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from dashboards.fresh_seeds import MIN_SEEDS, MOST_SEEDS
from dashboards.statistics.dunnett import Vector, critical_value
from dashboards.statistics.guards import Variances, difference_noise
from dashboards.statistics.levels import ASSURANCE, POWER, level

_DRAWS = 20_000  # Monte Carlo samples of the estimated noise; power is accurate to 0.003


def minimum_detectable_effect(
    sd: float,
    seeds: int,
    configurations: int = 2,
    known_dof: int = 0,
    repeats: float = 1,
    *,
    blocks: bool = False,
) -> float:
    """Return the smallest true gain over the baseline that the verdict detects with 80% power.

    Args:
        sd: standard deviation of a score between seeds, for example from repeated baseline runs. If
            seeds are blocks, without the seed effect that all configurations share.
        seeds: seeds per configuration, at least 2.
        configurations: number of configurations, baseline included.
        known_dof: degrees of freedom that other seeds add for two configurations.
        repeats: factor of the p-value after earlier confirmations (`levels.repeats_factor`).
        blocks: whether seeds are treated as blocks.

    Raises:
        ValueError: fewer than 2 seeds or 2 configurations.
    """
    if seeds < 2 or configurations < 2:
        raise ValueError("power needs at least 2 seeds and 2 configurations")
    error = sd * math.sqrt(2 / seeds)
    if configurations == 2:
        return error * _detectable_alone(seeds - 1 + known_dof, repeats, blocks=blocks)
    return error * _detectable_t(seeds, configurations, repeats, blocks=blocks)


def seeds_for(
    effect: float,
    sd: float,
    configurations: int = 2,
    known_dof: int = 0,
    repeats: float = 1,
    *,
    blocks: bool = False,
) -> int | None:
    """Return the minimum number of seeds per configuration to detect a true gain ``effect`` with
    80% power; at least `MIN_SEEDS`, because fewer cannot support a claim.

    None if more than ``MOST_SEEDS`` are needed or ``effect`` is not positive. ``known_dof`` is used
    for two configurations, on fresh seeds. The other arguments are the same as for
    `minimum_detectable_effect`.
    """

    def enough(seeds: int) -> bool:
        detected = minimum_detectable_effect(
            sd, seeds, configurations, known_dof, repeats, blocks=blocks
        )
        return detected <= effect

    if effect <= 0 or not enough(MOST_SEEDS):
        return None
    return MIN_SEEDS + bisect.bisect_left(range(MIN_SEEDS, MOST_SEEDS), True, key=enough)


def sd_interval(sd: float, dof: int, outside: float) -> tuple[float, float]:
    """Return the interval of a standard deviation ``sd`` that was estimated from normal scores with
    ``dof`` degrees of freedom; each bound misses with probability ``outside``.
    """
    low = sd * math.sqrt(dof / float(special.chdtri(dof, outside)))
    return low, sd * math.sqrt(dof / float(special.chdtri(dof, 1 - outside)))


@dataclass(frozen=True)
class SeedsNeeded:
    """The range of seeds per configuration that detect a gain with 80% power, given estimated
    noise; None for more than ``MOST_SEEDS``.
    """

    fewest: int | None  # seeds needed if the noise is at the lower end of its interval
    # seeds needed if it is at the upper end; recommended, because they reach the power with 80%
    # assurance
    enough: int | None

    def __str__(self) -> str:
        if self.fewest is None:
            return f"more than {MOST_SEEDS} seeds"
        if self.enough is None:
            return f"{self.fewest} to more than {MOST_SEEDS} seeds"
        if self.fewest == self.enough:
            return f"{self.enough} seeds"
        return f"{self.fewest} to {self.enough} seeds (plan for {self.enough})"


def seeds_needed(
    effect: float, sd: float, dof: int, configurations: int = 2, *, blocks: bool = False
) -> SeedsNeeded:
    """Return the range of seeds that detect a true gain ``effect`` with 80% power, if the standard
    deviation ``sd`` of a score was estimated with ``dof`` degrees of freedom.

    A standard deviation from few seeds is often too small by chance. `seeds_for` uses the estimate
    itself, so about half of the time the power is lower than stated. The upper end of this range is
    enough with a probability of ``ASSURANCE``.
    """
    low, high = sd_interval(sd, dof, 1 - ASSURANCE)
    return SeedsNeeded(
        seeds_for(effect, low, configurations, blocks=blocks),
        seeds_for(effect, high, configurations, blocks=blocks),
    )


@functools.cache
def _detectable_alone(dof: int, repeats: float, *, blocks: bool) -> float:
    """Return the gain, in true standard errors, that the verdict on one configuration detects with
    80% power: by the paired t test if seeds are blocks, else by Welch's test.
    """
    generator = np.random.default_rng(1)
    of_one = generator.chisquare(dof, _DRAWS) / dof
    of_base = of_one if blocks else generator.chisquare(dof, _DRAWS) / dof
    variance = (of_one + of_base) / 2
    satterthwaite = np.full(_DRAWS, float(dof))
    if not blocks:
        satterthwaite = dof * (of_one + of_base) ** 2 / (of_one**2 + of_base**2)
    critical = special.stdtrit(satterthwaite, 1 - level(satterthwaite) / repeats)
    return _shift_found(critical * np.sqrt(variance))


@functools.cache
def _detectable_t(seeds: int, configurations: int, repeats: float, *, blocks: bool) -> float:
    """Return the gain, in true standard errors, whose t statistic exceeds the critical value with
    80% probability.
    """
    return _shift_found(_needed_t(configurations, seeds, repeats, blocks=blocks))


def _shift_found(needed: Vector) -> float:
    """Return the gain, in true standard errors, that is significant in 80% of the simulations."""

    def lacking(shift: float) -> float:
        return float(special.ndtr(shift - needed).mean()) - POWER

    return float(optimize.brentq(lacking, 0.0, 10 * float(needed.mean()) + 10, xtol=1e-6))


def _needed_t(configurations: int, seeds: int, repeats: float, *, blocks: bool) -> Vector:
    """Simulate the smallest significant difference, in true standard errors, for three
    configurations or more.
    """
    others = configurations - 1
    variances = _simulated_variances(others, seeds, blocks=blocks)
    needed = _critical(others, variances.dof, repeats)
    return difference_noise(variances, others) / math.sqrt(2) * needed


def _simulated_variances(others: int, seeds: int, *, blocks: bool) -> Variances:
    """Simulate the variances that `difference_noise` combines, for a baseline and at least two
    other configurations whose scores have variance 1.

    For each seed, the scores minus the seed's effect are split into orthogonal parts, whose sums of
    squares over the seeds are independent:

    - the baseline minus the mean of the others, with ``seeds - 1`` degrees of freedom;
    - the best minus the mean of the others, with ``seeds - 1``;
    - the remaining differences between the others, with ``(others - 2) (seeds - 1)``.

    The residuals of the additive model are all three parts, and the variance between the others is
    the last two. The variance of unpaired runs is computed from the scores, as if seeds had no
    effect.
    """
    generator = np.random.default_rng(1)
    dof = seeds - 1
    base = generator.standard_normal((_DRAWS, dof))
    mean_of_others = generator.standard_normal((_DRAWS, dof)) / math.sqrt(others)
    # variance of the baseline minus the mean of the others
    contrast_variance = (others + 1) / others
    base_part = (base - mean_of_others) / math.sqrt(contrast_variance)
    best_part = generator.standard_normal((_DRAWS, dof))
    best = mean_of_others + best_part * math.sqrt((others - 1) / others)

    base_squares = _sum_of_squares(base_part)
    others_squares = _sum_of_squares(best_part)
    if others > 2:
        others_squares = others_squares + generator.chisquare((others - 2) * dof, _DRAWS)
    others_dof = (others - 1) * dof
    others_variance = others_squares / others_dof
    pooled_dof = others * dof
    # the contrast also contains the noise of the mean of the others
    base_variance = contrast_variance * base_squares / dof - others_variance / others
    unpaired = None
    if not blocks:
        unpaired = (_sum_of_squares(best) + _sum_of_squares(base)) / dof
    return Variances(
        pooled=(others_squares + base_squares) / pooled_dof,
        dof=pooled_dof,
        own=_sum_of_squares(best - base) / dof,
        own_dof=dof,
        unpaired=unpaired,
        base=np.maximum(0, base_variance),
        base_dof=dof,
        others=others_variance,
        others_dof=others_dof,
    )


def _sum_of_squares(values: NDArray[np.float64]) -> Vector:
    """Return each simulation's sum of squares over its seeds, [simulations]."""
    sums: Vector = (values**2).sum(axis=1)
    return sums


def _critical(comparisons: int, dof: int, repeats: float) -> float:
    """Return the critical value of the largest t, at the level divided by ``repeats``."""
    return critical_value(comparisons, dof, probability=level(dof) / repeats)
