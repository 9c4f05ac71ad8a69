"""pass@k, and confidence intervals for accuracy and pass@k."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rewards.errors import CodedValueError


def pass_at_k(correct: ArrayLike, completions: ArrayLike, k: int) -> NDArray[np.float64]:
    """Return an unbiased estimate for each problem, [P], of the probability that at least one of k
    completions is correct [arXiv:2107.03374, equation 1].

    ``1 - C(n - c, k) / C(n, k)`` for c correct of n completions, as a product of ratios, which
    cannot overflow.

    Raises:
        ValueError: k outside 1..n, or c outside 0..n.
    """
    c, n = np.broadcast_arrays(np.asarray(correct), np.asarray(completions))
    if k < 1 or (n < k).any():
        raise CodedValueError(
            f"pass@{k} needs at least {k} completions of every problem", code="too-few-completions"
        )
    if (c < 0).any() or (c > n).any():
        raise CodedValueError(
            "the number of correct completions must be between 0 and the number of completions",
            code="invalid-count",
        )
    drawn = np.arange(k)
    all_wrong = np.maximum(n[:, None] - c[:, None] - drawn, 0) / (n[:, None] - drawn)  # [P, k]
    estimate: NDArray[np.float64] = 1.0 - all_wrong.prod(axis=1)
    return estimate


def accuracy_interval(accuracies: ArrayLike, completions: ArrayLike) -> tuple[float, float]:
    """Return a 95% confidence interval for the mean of per-problem accuracies or pass@k [P], where
    each problem has ``completions`` [P].

    Wilson score interval [J. Am. Stat. Assoc. 22, 1927]. With several completions per problem it
    uses the effective sample size implied by the variance between problems, bounded by the numbers
    of problems and of completions. It uses a Student t quantile because that variance is estimated
    [Korn and Graubard, Survey Methodology 24, 1998]. A bootstrap over problems is too narrow near 0
    and 1.
    """
    from scipy import special  # scipy.stats takes half a second more to import

    fractions = np.asarray(accuracies, dtype=float)
    tail = 0.975
    size = float(len(fractions))
    rate = float(fractions.mean())
    z = float(special.ndtri(tail))
    if np.max(completions) > 1 and np.ptp(fractions) > 0:
        z = float(special.stdtrit(len(fractions) - 1, tail))
        size = min(
            max(size, size * rate * (1 - rate) / float(fractions.var(ddof=1))),
            float(np.sum(completions)),
        )
    center = (rate + z**2 / (2 * size)) / (1 + z**2 / size)
    half = z / (1 + z**2 / size) * math.sqrt(rate * (1 - rate) / size + z**2 / (4 * size**2))
    return max(0.0, center - half), min(1.0, center + half)
