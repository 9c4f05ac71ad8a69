"""The difference of one configuration to the baseline, with its interval and what it shows.

Every comparison has this result: a search, fresh seeds, interim analyses, rules at their own best.
Verdicts and tables are views of it. A configuration is its number here; names are for readers.
"""

import math
from dataclasses import dataclass
from typing import Literal

from dashboards.fresh_seeds import MIN_SEEDS
from dashboards.statistics.levels import SIGNIFICANCE_LEVEL

Layout = Literal["paired", "partly paired", "unpaired", "by task", "against a number"]
# not better: by the worthwhile amount, in rounds; not worse: by the margin that was asked for
Outcome = Literal["better", "worse", "not better", "not worse", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A configuration's gain over the baseline: larger is better, whatever the objective."""

    configuration: str
    baseline: str
    gain: float  # the mean over the seeds that ended
    # shared by the configuration and the baseline, failed ones included; the smaller number of runs
    # if they are not paired
    seeds: int
    median: float = math.nan  # over the same seeds
    # simultaneous over all comparisons; better if it lies above 0; None if the seeds cannot decide
    interval: tuple[float, float] | None = None
    level: float = SIGNIFICANCE_LEVEL  # with which each bound of the interval misses
    # one-sided, corrected for the number of comparisons; None in rounds
    p: float | None = None
    p_worse: float | None = (
        None  # in the same way for a configuration that is worse than the baseline
    )
    outcome: Outcome = "undecided"
    layout: Layout = "paired"
    # the interval uses evaluation noise, because no variance between seeds is detected beyond it
    by_problem: bool = False
    # with failed runs imputed to oppose a gain; None if none failed
    opposed_gain: float | None = None

    @property
    def certain_gain(self) -> float:
        """The gain if failed runs oppose it, by which configurations are ranked."""
        return self.gain if self.opposed_gain is None else self.opposed_gain

    @property
    def coverage(self) -> float:
        """The coverage of the interval."""
        return 1 - 2 * self.level

    @property
    def largest_gain(self) -> float:
        """The largest gain that the interval does not exclude; infinite without an interval."""
        return math.inf if self.interval is None else self.interval[1]

    @property
    def better(self) -> bool:
        """Whether the gain is significant, on however few seeds."""
        return self.interval is not None and self.interval[0] > 0

    @property
    def worse(self) -> bool:
        """Whether the loss is significant, on however few seeds."""
        return self.interval is not None and self.interval[1] < 0

    @property
    def two_sided_p(self) -> float | None:
        """The p value of a difference in either direction."""
        if self.p is None or self.p_worse is None:
            return None
        return min(1.0, 2 * min(self.p, self.p_worse))

    def measured(self, sign: int) -> float:
        """Return the difference in units of the score; ``sign`` is -1 if smaller is better."""
        return sign * self.gain

    def measured_interval(self, sign: int) -> tuple[float, float] | None:
        """Return the interval in units of the score."""
        if self.interval is None:
            return None
        low, high = sorted(sign * bound for bound in self.interval)
        return low, high


def outcome_of(
    interval: tuple[float, float] | None, seeds: int, not_worse_by: float | None = None
) -> Outcome:
    """Return what an interval of a gain shows.

    Args:
        interval: of the gain; None if the seeds cannot decide.
        seeds: on which it rests; fewer than `MIN_SEEDS` show nothing.
        not_worse_by: the margin of a non-inferiority test, if it was asked for.
    """
    if interval is None or seeds < MIN_SEEDS:
        return "undecided"
    low, high = interval
    if low > 0:
        return "better"
    if not_worse_by is not None and low > -not_worse_by:
        return "not worse"
    return "worse" if high < 0 else "undecided"


def guard_outcome(found: Difference, margin: float) -> Literal["holds", "fails", "undecided"]:
    """Return whether a gain is shown not to be a loss larger than the margin."""
    if found.interval is None or found.seeds < MIN_SEEDS:
        return "undecided"
    low, high = found.interval
    if low >= -margin:
        return "holds"
    return "fails" if high < -margin else "undecided"
