"""The difference of a configuration from the baseline, with its interval and conclusion.

Every comparison returns it: searches, fresh seeds, interim analyses, and rules at their own best.
Verdicts and tables are derived from it. Configurations are identified by number; names are only for
display.
"""

import math
from dataclasses import dataclass
from typing import Literal

from dashboards.fresh_seeds import MIN_SEEDS
from dashboards.statistics.levels import SIGNIFICANCE_LEVEL

Layout = Literal["paired", "partly paired", "unpaired", "by task", "against a number"]
# ``not better`` is an improvement below the worthwhile amount, and ``not worse`` a loss below the
# non-inferiority margin. Only interim analyses give ``not better`` and ``fails a guard``.
Outcome = Literal["better", "worse", "not better", "fails a guard", "not worse", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A configuration's gain over the baseline: larger is better, whatever the objective."""

    configuration: str
    baseline: str
    gain: float  # mean over the successful seeds
    # number of seeds that the configuration and the baseline share, failed ones included; if
    # unpaired, the smaller number of runs
    seeds: int
    median: float = math.nan  # median over the same seeds
    # interval of the gain, simultaneous over all comparisons; None if the seeds cannot decide
    interval: tuple[float, float] | None = None
    level: float = SIGNIFICANCE_LEVEL  # error probability of each bound of the interval
    # one-sided p value, corrected for the number of comparisons; None in interim analyses, and if
    # the seeds cannot decide
    p: float | None = None
    # the same p value for the claim that the configuration is worse than the baseline
    p_worse: float | None = None
    outcome: Outcome = "undecided"
    layout: Layout = "paired"
    # whether the interval uses evaluation noise, because no further variance between seeds is
    # detected
    by_problem: bool = False
    # gain with failed runs imputed against it; None if none failed
    opposed_gain: float | None = None

    @property
    def certain_gain(self) -> float:
        """The gain with failed runs imputed against it, by which configurations are ranked."""
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
        """Whether the gain is significant, regardless of the number of seeds."""
        return self.interval is not None and self.interval[0] > 0

    @property
    def worse(self) -> bool:
        """Whether the loss is significant, regardless of the number of seeds."""
        return self.interval is not None and self.interval[1] < 0

    @property
    def two_sided_p(self) -> float | None:
        """The p value of a difference in either direction; None without one-sided p values."""
        if self.p is None or self.p_worse is None:
            return None
        return min(1.0, 2 * min(self.p, self.p_worse))

    def measured(self, sign: int) -> float:
        """Return the difference in units of the score; ``sign`` is -1 if smaller is better."""
        return sign * self.gain

    def measured_interval(self, sign: int) -> tuple[float, float] | None:
        """Return the interval in units of the score; None if there is none."""
        if self.interval is None:
            return None
        low, high = sorted(sign * bound for bound in self.interval)
        return low, high


def outcome_of(
    interval: tuple[float, float] | None, seeds: int, not_worse_by: float | None = None
) -> Outcome:
    """Return the conclusion from the interval of a gain.

    Args:
        interval: interval of the gain; None if the seeds cannot decide.
        seeds: number of seeds; with fewer than `MIN_SEEDS` the outcome is undecided.
        not_worse_by: the margin of a non-inferiority test, if requested.
    """
    if interval is None or seeds < MIN_SEEDS:
        return "undecided"
    low, high = interval
    if low > 0:
        return "better"
    if not_worse_by is not None and low > -not_worse_by:
        return "not worse"
    return "worse" if high < 0 else "undecided"


def guard_outcome(
    found: Difference | None, margin: float
) -> Literal["holds", "fails", "undecided"]:
    """Return whether a loss larger than the margin is excluded (``holds``) or shown (``fails``);
    ``undecided`` otherwise, for example with too few seeds.
    """
    if found is None or found.interval is None or found.seeds < MIN_SEEDS:
        return "undecided"
    low, high = found.interval
    if low >= -margin:
        return "holds"
    return "fails" if high < -margin else "undecided"
