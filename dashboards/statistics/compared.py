"""The result of comparing all configurations with the baseline, returned by every test."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dashboards.statistics.difference import Difference
from dashboards.statistics.seed_noise import Noise, PairedDifference


@dataclass(frozen=True)
class Comparison:
    """All configurations compared with the baseline, as gains (larger is better)."""

    differences: tuple[Difference, ...]
    paired: Mapping[str, PairedDifference]  # configuration -> paired difference
    noise: Noise  # noise of a score
    failed: Mapping[str, int]  # configuration -> number of failed seeds
    # configuration -> noise of a score in its own test, if different
    noises: Mapping[str, Noise] = field(default_factory=dict)
    repeats: float = 1  # factor of the p-values after earlier confirmations
    blocks: bool = False  # whether seeds were treated as blocks
