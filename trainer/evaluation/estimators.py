"""Estimates from several completions per problem, and how far they can be trusted."""

import math

import numpy as np
from numpy.typing import ArrayLike


def accuracy_interval(accuracies: ArrayLike, completions: ArrayLike) -> tuple[float, float]:
    """Return the 95% interval of the mean of accuracies, or pass@k, of problems [P], each of so
    many ``completions`` [P].

    Wilson's score interval [J. Am. Stat. Assoc. 22, 1927], where problems have several completions
    for as many independent ones as the spread over problems shows, between one of each and all,
    with Student's quantile because few problems tell that spread [Korn and Graubard, Survey
    Methodology 24, 1998]. Near 0 and 1 a bootstrap over problems is too narrow.
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
