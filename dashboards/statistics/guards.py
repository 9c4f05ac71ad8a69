"""The noise of a difference where the assumption of equal noise may not hold. Works on many sweeps
at once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dashboards.statistics.dunnett import critical_value

Vector = NDArray[np.float64]

# Level of the F test after which a baseline counts as noisier than the others: a little above 0.1,
# which a variance nine times as large has up to rounding, with two degrees of freedom each.
NOISIER = 0.1000001
# Levels of the F tests that must both not see training add to the noise of evaluation: of all
# configurations, and of the best alone. Far above those of a test, because what they miss is left
# out of the interval.
UNSEEN = (0.5, 0.25)


@dataclass(frozen=True)
class Variances:
    """Estimated variances, each [N] for N sweeps of one layout."""

    pooled: Vector  # of one score, all configurations together
    freedom: int
    own: Vector  # of one configuration's differences to the baseline, seed by seed
    # of one score of the baseline; None where there are too few others to tell
    base: Vector | None = None
    base_freedom: int = 0
    others: Vector | None = None  # of one score of the other configurations
    others_freedom: int = 0
    # of the configuration's differences, the part that evaluation makes
    evaluation: Vector | None = None
    evaluation_freedom: int = 0
    own_freedom: int = 0  # needed with an evaluation


def difference_noise(variances: Variances, comparisons: int) -> Vector:
    """Return the standard deviation of the best difference on one seed, [N], to be judged with
    ``variances.freedom``.

    That of evaluation alone where nothing else is seen, and elsewhere that of the scores. A
    deviation that is known with other degrees of freedom is scaled by the ratio of the critical
    values.
    """
    deviation = _guarded(variances, comparisons)
    if variances.evaluation is None:
        return deviation
    needed = critical_value(comparisons, variances.evaluation_freedom) / critical_value(
        comparisons, variances.freedom
    )
    return np.where(evaluation_alone(variances), needed * np.sqrt(variances.evaluation), deviation)


def evaluation_alone(variances: Variances) -> NDArray[np.bool_]:
    """Return where scores vary between seeds no more than evaluation on so many problems does by
    itself, [N] of bool.

    Evaluation's variance is known from many problems, that between few seeds from few. Where F
    tests at the levels ``UNSEEN`` see no more than the first, it stands for both: pooling after a
    preliminary test at a high level (Bancroft, Annals of Mathematical Statistics 15, 1944), here
    without the seeds' own part.
    """
    if variances.evaluation is None:
        return np.zeros(len(variances.pooled), bool)
    unseen = np.ones(len(variances.pooled), bool)
    estimates = [(2 * variances.pooled, variances.freedom), (variances.own, variances.own_freedom)]
    for (variance, freedom), level in zip(estimates, UNSEEN, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nan_to_num(variance / variances.evaluation, nan=np.inf)
        unseen &= special.fdtrc(freedom, variances.evaluation_freedom, ratio) > level
    return unseen


def _guarded(variances: Variances, comparisons: int) -> Vector:
    """Return `difference_noise` from the scores alone.

    Twice the pooled variance, but

    - at least the variance of the configuration's own differences: it may be noisier than the
      others;
    - at least the baseline's variance and that of the others: the baseline may be. Where an F test
      at level ``NOISIER`` finds it noisier, or two seeds allow no test, that sum counts with
      Welch's degrees of freedom.
    """
    deviation = np.sqrt(np.maximum(2 * variances.pooled, variances.own))
    if variances.base is None or variances.others is None:
        return deviation
    between = np.sqrt(variances.base + variances.others)
    base_part = variances.base**2 / variances.base_freedom
    others_part = variances.others**2 / variances.others_freedom
    with np.errstate(divide="ignore", invalid="ignore"):
        welch = np.clip(
            np.nan_to_num(between**4 / (base_part + others_part), nan=1.0), 1, variances.freedom
        )
        ratio = np.nan_to_num(variances.base / variances.others, nan=1.0)
    # whole ones, which are common, must not depend on rounding
    fewer = np.floor(welch + 1e-6).astype(np.int64)
    if variances.base_freedom > 1:
        noisier = special.fdtrc(variances.base_freedom, variances.others_freedom, ratio) < NOISIER
        fewer = np.where(noisier, fewer, variances.freedom)
    needed: Vector = np.vectorize(critical_value)(comparisons, fewer)
    needed /= critical_value(comparisons, variances.freedom)
    return np.maximum(deviation, needed * between)
