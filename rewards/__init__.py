"""Reward functions: what a completion is worth.

Add one by writing ``score(text, answer) -> Score`` in a file here and naming it in ``REWARDS``, or
keep it anywhere on the import path and name it ``module:function`` in the configuration;
``rewards.own`` says which forms such a function may have. Its module may define ``prepare()``,
which is called once before the first completion, and ``MINIMUM``, the score of a completion whose
scoring fails.
"""

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, cast

from rewards import knights_knaves, last_number, math_answers, think_format
from rewards.own import as_batch, columns_of, load_function, takes_batch
from rewards.score import BatchRewardFunction, RewardFunction, Rows, Score, Weights

__all__ = [
    "REWARDS",
    "BatchRewardFunction",
    "RewardFunction",
    "Score",
    "columns",
    "combine_batch",
    "minimum",
    "part_weight",
    "prepare",
    "wants_batches",
]

REWARDS: dict[str, RewardFunction] = {
    "knights_knaves": knights_knaves.score,
    "math": math_answers.score,
    "format": think_format.score,
    "last_number": last_number.score,
}


def combine_batch(functions: Weights) -> BatchRewardFunction:
    """Return the weighted sum of reward functions for many completions at once.

    Several functions give a breakdown of one part each. The one with the largest weight (the first
    of them on a tie) decides what counts as correct and as parsed. A text that one of them fails on
    has that error in place of its score.

    Raises:
        ValueError: no such name, module or function; says what to write instead.
    """
    if not functions:
        raise ValueError("name at least one reward function")
    names = [_short(name) for name in functions]
    weights = list(functions.values())
    of_batch = [_resolve_batch(name) for name in functions]
    judge = max(range(len(weights)), key=lambda index: abs(weights[index]))

    def weighted_sum(scores: Sequence[Score]) -> Score:
        if len(scores) == 1:
            breakdown = {part: weights[0] * value for part, value in scores[0].breakdown.items()}
        else:
            breakdown = {
                name: weight * score.reward
                for name, weight, score in zip(names, weights, scores, strict=True)
            }
        reward = sum(weight * score.reward for weight, score in zip(weights, scores, strict=True))
        return Score(reward, scores[judge].correct, breakdown, scores[judge].parsed)

    def combined(
        texts: Sequence[str], answers: Sequence[Any], rows: Rows = ()
    ) -> list[Score | Exception]:
        by_function = [function(texts, answers, rows) for function in of_batch]
        return [
            next((error for error in of_text if isinstance(error, Exception)), None)
            or weighted_sum(cast(Sequence[Score], of_text))
            for of_text in zip(*by_function, strict=True)
        ]

    return combined


def wants_batches(functions: Weights) -> bool:
    """Return whether one of the functions is to score many completions in one call."""
    return any(name not in REWARDS and takes_batch(load_function(name)) for name in functions)


def columns(functions: Weights) -> list[str]:
    """Return the columns of a problem's row that some function asks for."""
    of_user = [name for name in functions if name not in REWARDS]
    return [column for name in of_user for column in columns_of(load_function(name))]


def prepare(functions: Weights) -> None:
    """Do the slow imports of the named functions now."""
    for name in functions:
        hook = getattr(_module_of(name), "prepare", None)
        if hook is not None:
            hook()


def minimum(functions: Weights) -> float:
    """Return the weighted sum of the functions' lowest scores; one that declares none, or is
    subtracted, counts 0.
    """
    lowest = {
        name: getattr(_module_of(name), "MINIMUM", 0.0)
        for name, weight in functions.items()
        if weight > 0
    }
    for name, value in lowest.items():
        if not isinstance(value, int | float):
            raise ValueError(f"reward {name}: MINIMUM is {value!r}, not a number")
    return sum(functions[name] * value for name, value in lowest.items())


def part_weight(functions: Weights, part: str) -> float:
    """Return the weight that a part of the breakdown carries in the reward; 1 for what no function
    gave.
    """
    if len(functions) == 1:
        return next(iter(functions.values()))
    return {_short(name): weight for name, weight in functions.items()}.get(part, 1.0)


def _module_of(name: str) -> Any:
    module_name = REWARDS[name].__module__ if name in REWARDS else name.partition(":")[0]
    return sys.modules.get(module_name)


def _short(name: str) -> str:
    return name.rpartition(":")[2]


def _resolve_batch(name: str) -> BatchRewardFunction:
    if name not in REWARDS and ":" not in name:
        near = get_close_matches(name, REWARDS, n=1)
        there = f"use one of {', '.join(sorted(REWARDS))}, or write your own as module:function"
        raise ValueError(f"no reward named {name}; {f'did you mean {near[0]}?' if near else there}")
    return as_batch(REWARDS[name] if name in REWARDS else load_function(name), name)
