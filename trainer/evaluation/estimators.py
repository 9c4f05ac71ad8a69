"""Estimates from several completions per problem, and how far they can be trusted."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pass_at_k(correct: ArrayLike, completions: ArrayLike, k: int) -> NDArray[np.float64]:
    """Probability [P] that at least one of k completions is correct, without bias [arXiv:2107.03374, equation 1].

    ``1 - C(n - c, k) / C(n, k)`` for c correct of n completions, as a product of ratios: nothing overflows.

    Raises:
        ValueError: k outside 1..n, or c outside 0..n.
    """
    c, n = np.broadcast_arrays(np.asarray(correct), np.asarray(completions))
    if k < 1 or (n < k).any():
        raise ValueError(f"pass@{k} needs at least {k} completions of every problem, and k at least 1")
    if (c < 0).any() or (c > n).any():
        raise ValueError("the number of correct completions must lie between 0 and their number")
    drawn = np.arange(k)
    wrong = np.maximum(n[:, None] - c[:, None] - drawn, 0) / (n[:, None] - drawn)  # [P, k]
    estimate: NDArray[np.float64] = 1.0 - wrong.prod(axis=1)
    return estimate


def accuracy_interval(accuracies: ArrayLike, completions: ArrayLike) -> tuple[float, float]:
    """95 % interval of the mean of accuracies, or pass@k, of problems [P], each of so many ``completions`` [P].

    Wilson's score interval [J. Am. Stat. Assoc. 22, 1927], where problems have several completions for as many
    independent ones as the spread over problems shows, between one of each and all, with Student's quantile because
    few problems tell that spread [Korn and Graubard, Survey Methodology 24, 1998]. Near 0 and 1 a bootstrap over
    problems is too narrow.
    """
    from scipy import stats  # takes half a second, and no training needs it

    shares, tail = np.asarray(accuracies, dtype=float), 0.975
    size, rate, z = float(len(shares)), float(shares.mean()), float(stats.norm.ppf(tail))
    if np.max(completions) > 1 and np.ptp(shares) > 0:
        z = float(stats.t.ppf(tail, len(shares) - 1))
        size = min(max(size, size * rate * (1 - rate) / float(shares.var(ddof=1))), float(np.sum(completions)))
    centre = (rate + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * math.sqrt(rate * (1 - rate) / size + z**2 / (4 * size**2))
    return max(0.0, centre - half), min(1.0, centre + half)
