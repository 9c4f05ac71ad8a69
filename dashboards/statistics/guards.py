"""Estimate the noise of a difference if variances may be unequal. Vectorized over sweeps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dashboards.statistics.dunnett import critical_value

Vector = NDArray[np.float64]

# Level of the F test for a noisier baseline. Slightly above 0.1, because a variance ratio of nine
# with two degrees of freedom each has p = 0.1 up to rounding.
NOISIER_LEVEL = 0.1000001
# Minimum degrees of freedom to average a configuration's own variance with the pooled variance;
# with fewer, the larger of the two is used. Five seeds have four degrees of freedom.
_OWN_KNOWN = 4
# Levels of two F tests, for all configurations and for the best configuration. Evaluation noise
# alone is used only if neither detects further training noise. The levels are far above the usual
# ones, because undetected variance is missing from the interval.
POOLING_LEVELS = (0.5, 0.25)


@dataclass(frozen=True)
class Variances:
    """Estimated variances, each [N] for N sweeps of one layout."""

    pooled: Vector  # variance of a score, pooled over all configurations
    dof: int
    own: Vector  # variance of a configuration's paired differences from the baseline
    # variance of a score of the baseline; None if there are too few other configurations
    base: Vector | None = None
    base_dof: int = 0
    others: Vector | None = None  # variance of a score of the other configurations
    others_dof: int = 0
    # the part of the variance of the configuration's differences that comes from evaluation
    evaluation: Vector | None = None
    evaluation_dof: int = 0
    own_dof: int = 0
    # sum of the variances of the configuration's and of the baseline's scores, as if seeds were not
    # blocks; None if seeds clearly are blocks
    unpaired: Vector | None = None


def difference_noise(
    variances: Variances, comparisons: int, *, own_counts_half: bool = True
) -> Vector:
    """Return the standard deviation of the best difference on one seed, [N], for a test with
    ``variances.dof`` degrees of freedom.

    It is the evaluation noise if no other variance is detected, otherwise estimated from the
    scores. A standard deviation with different degrees of freedom is scaled by the ratio of the
    critical values for ``comparisons``, the number of configurations compared with the baseline.
    If ``own_counts_half`` is False, as in interim analyses, the larger of the pooled variance and
    the configuration's own variance is used, never their mean: with the mean, a better but noisy
    finalist would be dropped for futility too often.
    """
    sd = _score_noise(variances, comparisons, own_counts_half=own_counts_half)
    if variances.evaluation is None:
        return sd
    needed = critical_value(comparisons, variances.evaluation_dof) / critical_value(
        comparisons, variances.dof
    )
    return np.where(evaluation_alone(variances), needed * np.sqrt(variances.evaluation), sd)


def evaluation_alone(variances: Variances) -> NDArray[np.bool_]:
    """Return whether evaluation noise alone explains the variance between seeds, [N] of bool.

    Evaluation variance is estimated from many problems, variance between seeds from few seeds. If F
    tests at the levels ``POOLING_LEVELS`` detect nothing beyond evaluation variance, it is used for
    both. This is pooling after a preliminary test at a high level (Bancroft, Annals of Mathematical
    Statistics 15, 1944), here without pooling in the estimate from seeds.
    """
    if variances.evaluation is None:
        return np.zeros(len(variances.pooled), bool)
    unseen = np.ones(len(variances.pooled), bool)
    estimates = [(2 * variances.pooled, variances.dof), (variances.own, variances.own_dof)]
    for (variance, dof), level in zip(estimates, POOLING_LEVELS, strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.nan_to_num(variance / variances.evaluation, nan=np.inf)
        unseen &= special.fdtrc(dof, variances.evaluation_dof, ratio) > level
    return unseen


def _score_noise(variances: Variances, comparisons: int, *, own_counts_half: bool) -> Vector:
    """Return `difference_noise` estimated from the scores only.

    It is twice the pooled variance, with two corrections:

    - The configuration may be noisier than the others. On five or more seeds, with other
      configurations to pool, the mean of this variance and the variance of its own differences is
      used. Otherwise, and in interim analyses, the larger of the two is used. If the unpaired
      variance is still larger, the two are averaged, because few differences often vary little by
      chance.
    - The baseline may be noisier than the others. The variance is at least the sum of the
      baseline's variance and the others' variance. If an F test at level ``NOISIER_LEVEL`` finds
      the baseline noisier, or there are only two seeds, this sum has Welch's degrees of freedom.
    """
    # The own variance is unbiased but known from few seeds, the pooled one is precise but wrong for
    # a configuration that is noisier than the others.
    if own_counts_half and variances.dof > variances.own_dof >= _OWN_KNOWN:
        variance = (2 * variances.pooled + variances.own) / 2
    else:
        variance = np.maximum(2 * variances.pooled, variances.own)
        if variances.unpaired is not None:
            variance = (variance + np.maximum(variance, variances.unpaired)) / 2
    sd = np.sqrt(variance)
    if variances.base is None or variances.others is None:
        return sd
    # degrees of freedom of a sum of two estimated variances (Welch, Satterthwaite)
    between = np.sqrt(variances.base + variances.others)
    base_part = variances.base**2 / variances.base_dof
    others_part = variances.others**2 / variances.others_dof
    with np.errstate(divide="ignore", invalid="ignore"):
        welch = np.clip(
            np.nan_to_num(between**4 / (base_part + others_part), nan=1.0), 1, variances.dof
        )
        ratio = np.nan_to_num(variances.base / variances.others, nan=1.0)
    # integers are common, and rounding errors must not decrease them by 1
    fewer = np.floor(welch + 1e-6).astype(np.int64)
    if variances.base_dof > 1:
        noisier = special.fdtrc(variances.base_dof, variances.others_dof, ratio) < NOISIER_LEVEL
        fewer = np.where(noisier, fewer, variances.dof)
    # the caller tests with ``variances.dof`` degrees of freedom: widen by the ratio of the critical
    # values where there are fewer
    needed: Vector = np.vectorize(critical_value)(comparisons, fewer)
    needed /= critical_value(comparisons, variances.dof)
    return np.maximum(sd, needed * between)
