"""Confidence intervals for accuracy and pass@k."""

import math

import numpy as np
from numpy.typing import ArrayLike


def accuracy_interval(accuracies: ArrayLike, completions: ArrayLike) -> tuple[float, float]:
    """Return a 95% confidence interval for the mean of per-problem accuracies or pass@k [P], where
    each problem has ``completions`` [P].

    Wilson score interval [J. Am. Stat. Assoc. 22, 1927]. With several completions per problem it
    uses the effective sample size implied by the variance between problems, bounded by the numbers
    of problems and of completions, and a Student t quantile because that variance is estimated
    [Korn and Graubard, Survey Methodology 24, 1998]. A bootstrap over problems is too narrow near 0
    and 1.
    """
    from scipy import stats  # takes half a second, and no training needs it

    shares = np.asarray(accuracies, dtype=float)
    tail = 0.975
    size = float(len(shares))
    rate = float(shares.mean())
    z = float(stats.norm.ppf(tail))
    if np.max(completions) > 1 and np.ptp(shares) > 0:
        z = float(stats.t.ppf(tail, len(shares) - 1))
        size = min(
            max(size, size * rate * (1 - rate) / float(shares.var(ddof=1))),
            float(np.sum(completions)),
        )
    center = (rate + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * math.sqrt(rate * (1 - rate) / size + z**2 / (4 * size**2))
    return max(0.0, center - half), min(1.0, center + half)
