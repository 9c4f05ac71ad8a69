"""The noise of a difference where the assumption of equal noise may not hold. Works on many sweeps at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dashboards.statistics.dunnett import critical_value

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]

NOISIER = 0.1  # level of the F test after which a baseline counts as noisier than the others
# Levels of the F tests that must both not see training add to the noise of evaluation: of all configurations, and
# of the best alone. Far above those of a test, because what they miss is left out of the interval.
UNSEEN = (0.5, 0.25)


@dataclass(frozen=True)
class Variances:
    """Estimated variances, each [N] for N sweeps of one layout."""

    pooled: Vector  # of one score, all configurations together
    freedom: int
    own: Vector  # of the best configuration's differences to the baseline, seed by seed
    base: Vector | None = None  # of one score of the baseline; None where there are too few others to tell
    base_freedom: int = 0
    others: Vector | None = None  # of one score of the other configurations
    others_freedom: int = 0
    evaluation: Vector | None = None  # of the best configuration's differences, the part that evaluation makes
    evaluation_freedom: int = 0
    own_freedom: int = 0  # needed with an evaluation


def difference_noise(found: Variances, comparisons: int) -> tuple[Vector, Integers]:
    """Standard deviation of the best difference on one seed and its degrees of freedom, each [N].

    That of evaluation alone where nothing else is seen, and elsewhere that of the scores.
    """
    deviation, freedom = _guarded(found, comparisons)
    if found.evaluation is None:
        return deviation, freedom
    alone = evaluation_alone(found)
    deviation = np.where(alone, np.sqrt(found.evaluation), deviation)
    return deviation, np.where(alone, found.evaluation_freedom, freedom)


def evaluation_alone(found: Variances) -> NDArray[np.bool_]:
    """True where scores vary between seeds no more than evaluation on so many problems does by itself, [N].

    Evaluation's variance is known from many problems, that between few seeds from few. Where F tests at the
    levels ``UNSEEN`` see no more than the first, it stands for both: pooling after a preliminary test at a
    high level (Bancroft, Annals of Mathematical Statistics 15, 1944), here without the seeds' own part.
    """
    if found.evaluation is None:
        return np.zeros(len(found.pooled), bool)
    unseen = np.ones(len(found.pooled), bool)
    estimates = [(2 * found.pooled, found.freedom), (found.own, found.own_freedom)]
    for (variance, freedom), level in zip(estimates, UNSEEN, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nan_to_num(variance / found.evaluation, nan=np.inf)
        unseen &= stats.f.sf(ratio, freedom, found.evaluation_freedom) > level
    return unseen


def _guarded(found: Variances, comparisons: int) -> tuple[Vector, Integers]:
    """`difference_noise` from the scores alone.

    Twice the pooled variance, but

    - at least the variance of the best configuration's own differences: it may be noisier than the others;
    - at least the baseline's variance and that of the others: the baseline may be. Where an F test at level
      ``NOISIER`` finds it noisier, or two seeds allow no test, that sum counts with Welch's degrees of freedom
      if it gives the wider interval.
    """
    deviation = np.sqrt(np.maximum(2 * found.pooled, found.own))
    freedom = np.full(len(deviation), found.freedom, dtype=np.int64)
    if found.base is None or found.others is None:
        return deviation, freedom
    between = np.sqrt(found.base + found.others)
    base_part, others_part = found.base**2 / found.base_freedom, found.others**2 / found.others_freedom
    with np.errstate(divide="ignore", invalid="ignore"):
        welch = np.clip(np.nan_to_num(between**4 / (base_part + others_part), nan=1.0), 1, found.freedom)
        ratio = np.nan_to_num(found.base / found.others, nan=1.0)
    fewer = np.floor(welch + 1e-6).astype(np.int64)  # whole ones, which are common, must not depend on rounding
    if found.base_freedom > 1:
        noisier = stats.f.sf(ratio, found.base_freedom, found.others_freedom) < NOISIER
        fewer = np.where(noisier, fewer, found.freedom)
    wider = critical_values(comparisons, fewer) * between > critical_values(comparisons, freedom) * deviation
    return np.where(wider, between, deviation), np.where(wider, fewer, freedom)


def critical_values(comparisons: int, freedom: Integers) -> Vector:
    """Dunnett's critical value for each of several degrees of freedom."""
    distinct, places = np.unique(freedom, return_inverse=True)
    return np.array([critical_value(comparisons, int(one)) for one in distinct])[places]


def unlike_noise(found: Variances, residuals: Vector) -> str:
    """Signs that the noise of one sweep is not normal and alike for all configurations, in words; empty if none.

    F tests at level ``NOISIER`` for the baseline and the best configuration, and the test of Shapiro and Wilk
    (Biometrika 52, 1965) at the same level for seeds far from the rest, on the residuals of the additive model of
    configurations and seeds.
    """
    signs = []
    with np.errstate(divide="ignore", invalid="ignore"):
        if found.base is not None and found.others is not None:
            ratio = found.base[0] / found.others[0]
            if stats.f.sf(ratio, found.base_freedom, found.others_freedom) < NOISIER:
                signs.append("the baseline is noisier than the others")
        ratio = found.own[0] / (2 * found.pooled[0])
        if stats.f.sf(ratio, found.own_freedom, found.freedom) < NOISIER:
            signs.append("the best configuration is noisier than the others")
    if len(residuals) > 2 and stats.shapiro(residuals / np.abs(residuals).max()).pvalue < NOISIER:
        signs.append("some seeds lie far from the rest")
    return " and ".join(signs)
