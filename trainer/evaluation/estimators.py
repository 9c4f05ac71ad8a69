"""Estimates from several completions per problem, and how far they can be trusted."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BLOCK = 1_000_000  # resampled values in memory at one time


def pass_at_k(correct: ArrayLike, completions: ArrayLike, k: int) -> NDArray[np.float64]:
    """Probability that at least one of k completions is correct, without bias [arXiv:2107.03374, equation 1].

    1 - C(n - c, k) / C(n, k), as a product of ratios so that nothing overflows.

    Args:
        correct: correct completions c of each problem, [P].
        completions: completions n of each problem, [P] or one number.
        k: from 1 to the smallest n.

    Returns:
        [P] float64.

    Raises:
        ValueError: k outside this range, or c outside 0..n.
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


def bootstrap_interval(
    values: ArrayLike, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean, resampling problems.

    The completions of one problem stay together: they are not independent. Where all values are equal the
    interval is a point, which says nothing about problems that were not drawn.

    Args:
        values: one value per problem, [P].
        confidence: share of the resampled means inside.
        resamples: number of resampled means.
        seed: of the resampling.
    """
    sample = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // len(sample))
    means = [
        sample[generator.integers(len(sample), size=(min(block, resamples - start), len(sample)))].mean(axis=1)
        for start in range(0, resamples, block)
    ]
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)
