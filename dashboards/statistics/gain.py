"""Gains over a baseline, as every comparison returns them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dashboards.statistics.seed_noise import Noise, PairedDifference


@dataclass(frozen=True)
class GainEstimate:
    """A configuration's gain over the baseline."""

    name: str
    seeds: int  # shared by both, failed ones included
    gain: float  # the mean over the seeds that ended
    median: float  # and the median
    # better if it lies above 0; None if the seeds cannot decide
    interval: tuple[float, float] | None = None
    # one-sided, corrected for the number of configurations; None in rounds
    p_value: float | None = None
    # likewise for a configuration that is worse than the baseline
    p_worse: float | None = None
    # the interval uses evaluation noise, because no variance between seeds is detected beyond it
    by_problem: bool = False
    # with failed runs imputed to oppose a gain; None if none failed
    opposed_gain: float | None = None

    @property
    def certain_gain(self) -> float:
        """The gain if failed runs oppose it, by which estimates are ranked."""
        return self.gain if self.opposed_gain is None else self.opposed_gain

    @property
    def largest_gain(self) -> float:
        """The largest gain that the interval does not exclude; infinite without an interval."""
        return math.inf if self.interval is None else self.interval[1]

    @property
    def better(self) -> bool:
        """Whether the gain is significant."""
        return self.interval is not None and self.interval[0] > 0


@dataclass(frozen=True)
class Comparison:
    """All configurations compared with the baseline, as gains (larger is better)."""

    estimates: tuple[GainEstimate, ...]
    paired: Mapping[str, PairedDifference]  # of the compared configurations
    noise: Noise  # of one score
    failed: Mapping[str, int]  # configuration -> its failed seeds
    # configuration -> the noise of one score that its own test used, where that is another
    noises: Mapping[str, Noise] = field(default_factory=dict)
    repeats: float = 1  # factor of the p-values
