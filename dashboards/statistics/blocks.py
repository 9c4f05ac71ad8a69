"""Whether a seed is a block: whether the scores of all configurations on one seed go up and down
together.

It decides how one finalist is compared: by the paired differences, or by Welch's test of all runs.
Nobody may look at the compared scores for it, because the better of two tests is chosen too often
by chance. The program declares it, the user asks for it, or it is learned from other seeds: from
the many configurations that a search ran on common seeds.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal

from scipy import special

from dashboards.statistics.levels import SIGNIFICANCE_LEVEL
from dashboards.statistics.seed_noise import Scores, seed_effects

# Smallest correlation from which on paired differences find more than Welch's test
# (research/verdict_on_real_runs.py --blocks).
WORTHWHILE_CORRELATION = 0.4


@dataclass(frozen=True)
class Blocks:
    """Whether a seed is a block, and how that is known."""

    known: bool | None  # None if nobody knows
    how: Literal["declared", "asked", "learned", "unknown"]
    correlation: float | None = None  # of two configurations' scores on one seed
    interval: tuple[float, float] | None = None  # of the correlation


UNKNOWN = Blocks(None, "unknown")


@dataclass(frozen=True)
class Known:
    """What was known before the compared scores were seen."""

    scores: Mapping[str, Mapping[Hashable, float]] | None = None  # of the search, for the noise
    blocks: bool | None = None


def learned(scores: Scores) -> Blocks:
    """Learn whether seeds are blocks from configurations that ran on common seeds.

    The intraclass correlation of the additive model, with its 90% interval from the F distribution
    (Shrout and Fleiss, Psychological Bulletin 86, 1979). Seeds are blocks if the interval excludes
    0 and the correlation is at least ``WORTHWHILE_CORRELATION``.
    """
    effects = seed_effects([scores])
    if effects is None:
        return UNKNOWN
    count = effects.configurations
    correlation = _correlation(effects.ratio, count)
    tail = 1 - SIGNIFICANCE_LEVEL
    low = effects.ratio / float(special.fdtri(effects.seeds_dof, effects.dof, tail))
    high = effects.ratio * float(special.fdtri(effects.dof, effects.seeds_dof, tail))
    interval = (_correlation(low, count), _correlation(high, count))
    are_blocks = interval[0] > 0 and correlation >= WORTHWHILE_CORRELATION
    return Blocks(are_blocks, "learned", correlation, interval)


def _correlation(ratio: float, configurations: float) -> float:
    """Return the intraclass correlation for a ratio of mean squares, of seeds to the rest."""
    if math.isinf(ratio):
        return 1.0
    return (ratio - 1) / (ratio + configurations - 1)
