"""Whether the scores of one configuration have moved between two times at which it ran.

A library, a data set, a machine or its load may change between the runs. Welch's t test compares
the scores at the two times; seeds may differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from dashboards.statistics.welch import welch

# Level of the test. Of the baselines that run again while nothing moves, one in twenty is said to
# have moved. Then a proposal is compared with the new runs, which costs runs and no validity.
MOVED_LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Move:
    """The change of a configuration's mean score from earlier to later runs."""

    change: float  # later minus earlier, in units of the score
    low: float  # 95% confidence interval
    high: float
    p: float  # two-sided

    @property
    def has_moved(self) -> bool:
        """Whether the scores have moved."""
        return self.p < MOVED_LEVEL


def moved(earlier: Sequence[float], later: Sequence[float]) -> Move:
    """Compare the scores of one configuration at two times.

    Args:
        earlier: scores of the earlier runs.
        later: scores of the later runs.

    Raises:
        ValueError: fewer than two scores at one of the times.
    """
    if min(len(earlier), len(later)) < 2:
        raise ValueError("two scores at each time are needed")
    change = float(np.mean(later) - np.mean(earlier))
    error, dof = welch(earlier, later)
    if error == 0:
        return Move(change=change, low=change, high=change, p=float(change == 0))
    half = -float(special.stdtrit(dof, MOVED_LEVEL / 2)) * error
    p = 2 * float(special.stdtr(dof, -abs(change) / error))
    return Move(change=change, low=change - half, high=change + half, p=p)
