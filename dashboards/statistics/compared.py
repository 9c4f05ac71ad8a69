"""All configurations compared with the baseline, as every test returns them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dashboards.statistics.difference import Difference
from dashboards.statistics.seed_noise import Noise, PairedDifference


@dataclass(frozen=True)
class Comparison:
    """All configurations compared with the baseline, as gains (larger is better)."""

    differences: tuple[Difference, ...]
    paired: Mapping[str, PairedDifference]  # of the compared configurations
    noise: Noise  # of one score
    failed: Mapping[str, int]  # configuration -> its failed seeds
    # configuration -> the noise of one score that its own test used, where that is another
    noises: Mapping[str, Noise] = field(default_factory=dict)
    repeats: float = 1  # factor of the p-values
    blocks: bool = False  # whether seeds were treated as blocks
