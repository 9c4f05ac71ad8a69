"""Arguments and result of a reward function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

ScoringStatus = Literal["ok", "timeout", "error"]
# why scoring failed, if known: a time or memory limit, or a withheld environment variable
FailureCause = Literal["", "time", "memory", "environment"]


Weights = Mapping[str, float]  # reward or ``module:function`` -> its weight in the sum


@dataclass(frozen=True)
class Score:
    """The reward of one completion.

    The values of ``breakdown`` sum to ``reward``, unless ``breakdown`` is empty. ``parsed`` is
    False if no answer could be extracted.
    """

    reward: float
    correct: bool
    breakdown: Mapping[str, float] = field(default_factory=dict)
    parsed: bool = True


# (prefill + completion, answer of the problem) -> score
RewardFunction = Callable[[str, Any], Score]
Rows = Sequence[Mapping[str, Any]]  # dataset columns of each problem
# batch: (texts, answers, rows) -> a score or an exception per text
BatchRewardFunction = Callable[[Sequence[str], Sequence[Any], Rows], list[Score | Exception]]
