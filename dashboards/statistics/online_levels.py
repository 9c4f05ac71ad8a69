"""Significance levels for a stream of proposals, which bound the fraction of false keeps.

Proposals arrive sequentially, and how many will come is unknown. Each is tested at a level that
depends on how long ago earlier proposals were kept. With LORD++ [JMLR 2018; arXiv:1710.00499], the
expected fraction of kept proposals that are not improvements stays below ``rate``, whatever the
number of proposals.
"""

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# exponent of the spending sequence; slow enough for gains that are twenty proposals apart
_DECAY = 1.6
_TERMS = 10_000  # maximum number of proposals in a campaign
_FIRST_FRACTION = 0.5  # fraction of the rate that is spent before the first keep


@functools.cache
def spending() -> NDArray[np.float64]:
    """Return the fractions [_TERMS] of a budget that are spent 1, 2, ... proposals after it became
    available. They decrease and sum to 1.
    """
    weights = np.arange(1, _TERMS + 1, dtype=float) ** -_DECAY
    fractions: NDArray[np.float64] = weights / weights.sum()
    return fractions


def lord_level(kept: Sequence[int], proposal: int, rate: float) -> float:
    """Return the significance level of a proposal by LORD++.

    The level is

        level_t = w0 g_t + (rate - w0) g_(t - t1) + rate * sum over j >= 2 of g_(t - tj)

    where g is `spending`, t1 < t2 < ... are the kept proposals, and w0 is half the rate.

    Args:
        kept: positions, from 1, of the earlier proposals that were kept, ascending.
        proposal: position of this proposal, from 1.
        rate: bound on the expected fraction of kept proposals that are not improvements.

    Raises:
        ValueError: the campaign is too long, or a position is not before the proposal.
    """
    if proposal > _TERMS:
        raise ValueError(f"a campaign has at most {_TERMS} proposals")
    if any(place >= proposal for place in kept):
        raise ValueError("kept proposals must precede the tested proposal")
    fractions = spending()
    first = _FIRST_FRACTION * rate
    level = first * fractions[proposal - 1]
    for number, place in enumerate(sorted(kept)):
        budget = rate if number else rate - first
        level += budget * fractions[proposal - place - 1]
    return float(level)
