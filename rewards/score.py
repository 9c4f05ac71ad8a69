"""What a reward function takes and returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

ScoringStatus = Literal["ok", "timeout", "error"]


@dataclass(frozen=True)
class Score:
    """The reward of one completion.

    The parts of ``breakdown`` add up to ``reward``; ``parsed`` says whether an answer could be read at all.
    """

    reward: float
    correct: bool
    breakdown: Mapping[str, float] = field(default_factory=dict)
    parsed: bool = True


RewardFunction = Callable[[str, Any], Score]  # (prefill + completion, answer of the problem) -> score
BatchRewardFunction = Callable[[Sequence[str], Sequence[Any]], list[Score]]  # the same, of many at once
