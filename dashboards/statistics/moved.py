"""Test whether the scores of a configuration have drifted between two sets of runs.

A library, a dataset, the machine or its load may have changed between the runs. Welch's t test
compares the earlier with the later scores; seeds may differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from dashboards.statistics.welch import welch

# Level of the test. Without any drift, one in twenty repeated baselines is reported as drifted. A
# proposal is then compared with the new runs, which costs runs but not validity.
MOVED_LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Move:
    """The change of a configuration's mean score from earlier to later runs."""

    change: float  # later minus earlier, in units of the score
    low: float  # lower end of the 95% confidence interval
    high: float
    p: float  # two-sided p value

    @property
    def has_moved(self) -> bool:
        """Whether the scores have drifted."""
        return self.p < MOVED_LEVEL


def moved(earlier: Sequence[float], later: Sequence[float]) -> Move:
    """Compare earlier and later scores of the same configuration.

    Args:
        earlier: scores of the earlier runs.
        later: scores of the later runs.

    Raises:
        ValueError: fewer than two earlier or later scores.
    """
    if min(len(earlier), len(later)) < 2:
        raise ValueError("fewer than two scores")
    change = float(np.mean(later) - np.mean(earlier))
    error, dof = welch(earlier, later)
    if error == 0:
        return Move(change=change, low=change, high=change, p=float(change == 0))
    half = -float(special.stdtrit(dof, MOVED_LEVEL / 2)) * error
    p = 2 * float(special.stdtr(dof, -abs(change) / error))
    return Move(change=change, low=change - half, high=change + half, p=p)
