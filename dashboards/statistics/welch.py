"""The standard error of a difference of two means with separate variances [Welch, 1947]."""

import math
from collections.abc import Sequence

from dashboards.statistics.rounding import variance


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of the difference of means, and Satterthwaite's degrees of freedom,
    which are NaN if all scores are equal.

    Args:
        one: at least two scores.
        other: at least two scores.
    """
    parts = [(variance(scores) / len(scores), len(scores)) for scores in (one, other)]
    error = math.sqrt(sum(part for part, _ in parts))
    if not error > 0:
        return error, math.nan
    uncertain = sum((part / error**2) ** 2 / (count - 1) for part, count in parts)
    return error, 1 / uncertain
