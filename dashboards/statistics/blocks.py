"""Determine whether seeds are blocks, that is, whether the scores of different configurations on
the same seed are correlated.

This decides how a single finalist is compared: by paired differences, or by Welch's test of all
runs. The compared scores must not be used for the choice, because choosing between two tests by
their results inflates the false positive rate. Instead, the program declares it, the user requests
it, or it is estimated from other seeds: from the configurations that a search ran on common seeds.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal

from scipy import special

from dashboards.statistics.levels import SIGNIFICANCE_LEVEL
from dashboards.statistics.seed_noise import Scores, seed_effects

# Smallest correlation at which the paired test has more power than Welch's test
# (research/verdict_on_real_runs.py --blocks).
WORTHWHILE_CORRELATION = 0.4


@dataclass(frozen=True)
class Blocks:
    """Whether seeds are blocks, and the evidence for it."""

    known: bool | None  # None if unknown
    how: Literal["declared", "asked", "learned", "unknown"]
    # correlation of the scores of two configurations on the same seed
    correlation: float | None = None
    interval: tuple[float, float] | None = None  # interval of the correlation


UNKNOWN = Blocks(None, "unknown")


@dataclass(frozen=True)
class Known:
    """Prior knowledge that does not come from the compared scores."""

    # scores of the search, for the noise estimate
    scores: Mapping[str, Mapping[Hashable, float]] | None = None
    blocks: bool | None = None


def learned(scores: Scores) -> Blocks:
    """Estimate whether seeds are blocks from configurations that ran on common seeds.

    The estimate is the intraclass correlation of the additive model, with its 90% interval from the
    F distribution (Shrout and Fleiss, Psychological Bulletin 86, 1979). Seeds are blocks if the
    interval excludes 0 and the correlation is at least ``WORTHWHILE_CORRELATION``. `UNKNOWN` if the
    scores do not allow an estimate.
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
    """Return the intraclass correlation. ``ratio`` is the mean square of the seeds divided by the
    residual mean square.
    """
    if math.isinf(ratio):
        return 1.0
    return (ratio - 1) / (ratio + configurations - 1)
