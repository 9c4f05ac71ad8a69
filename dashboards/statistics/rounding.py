"""Distinguish scores that differ from scores that are equal except for rounding errors.

Equal scores mean that the score is coarse, not that it has no noise. The computed variance of equal
scores is often not 0: with NumPy, three scores of 0.7 have a variance of 1.8e-32, and three scores
of 0.5 have none.
"""

from collections.abc import Iterable

import numpy as np

# Relative to the largest number. It also covers scores that a table lists with ten digits.
_RELATIVE = 1e-9


def rounding(*samples: Iterable[float]) -> float:
    """Return the largest difference between results computed from these numbers that rounding
    explains.
    """
    return _RELATIVE * max((abs(value) for sample in samples for value in sample), default=0.0)


def is_equal(values: Iterable[float], *computed_from: Iterable[float]) -> bool:
    """Return whether all values are equal except for rounding errors; differences of scores need
    the scores that they were computed from, because their rounding errors depend on these.
    """
    every = list(values)
    return max(every) - min(every) <= rounding(every, *computed_from)


def variance(values: Iterable[float], *computed_from: Iterable[float]) -> float:
    """Return the variance of at least two values: exactly 0 if they are equal (`is_equal`)."""
    every = list(values)
    return 0.0 if is_equal(every, *computed_from) else float(np.var(every, ddof=1))
