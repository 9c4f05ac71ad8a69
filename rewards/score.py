"""Arguments and result of a reward function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

ScoringStatus = Literal["ok", "timeout", "error"]


Weights = Mapping[str, float]  # reward or ``module:function`` -> its weight in the sum


@dataclass(frozen=True)
class Score:
    """The reward of one completion.

    The parts of ``breakdown`` add up to ``reward``; ``parsed`` says whether an answer could be read
    at all.
    """

    reward: float
    correct: bool
    breakdown: Mapping[str, float] = field(default_factory=dict)
    parsed: bool = True


# (prefill + completion, answer of the problem) -> score
RewardFunction = Callable[[str, Any], Score]
Rows = Sequence[Mapping[str, Any]]  # the columns of each problem's row
# Many at once: (texts, answers, rows) -> scores, or the errors of single texts.
BatchRewardFunction = Callable[[Sequence[str], Sequence[Any], Rows], list[Score | Exception]]
