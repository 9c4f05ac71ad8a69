"""Reward functions that score completions.

To add a built-in reward, write ``score(text, answer) -> Score`` in this package and register it in
``REWARDS``. A user's own function can be anywhere on the import path; the configuration refers to
it as ``module:function``. `rewards.custom` lists the supported signatures. The module of a function
may define ``prepare()``, which is called once before the first completion, and ``MINIMUM``, the
score of a completion that could not be scored.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from rewards import knights_knaves, last_number, math_answers, think_format
from rewards.custom import (
    as_batch,
    columns_of,
    is_batch_function,
    is_finite,
    load_function,
    takes_all_columns,
)
from rewards.errors import CodedValueError
from rewards.score import BatchRewardFunction, RewardFunction, Rows, Score, Weights

__all__ = [
    "OVERLONG_PART",
    "REWARDS",
    "BatchRewardFunction",
    "RewardFunction",
    "Score",
    "any_batch_function",
    "columns",
    "combine_batch",
    "correctness_reward",
    "minimum",
    "part_names",
    "part_weight",
    "prepare",
]

OVERLONG_PART = "overlong"  # breakdown entry of the length penalty; no function may use this name
REWARDS: dict[str, RewardFunction] = {
    "knights_knaves": knights_knaves.score,
    "math": math_answers.score,
    "format": think_format.score,
    "last_number": last_number.score,
}


def combine_batch(functions: Weights) -> BatchRewardFunction:
    """Return a batch function that computes the weighted sum of reward functions.

    With several functions, the breakdown has one entry per function, see `part_names`. The function
    with the largest absolute weight (the first on a tie) sets ``correct`` and ``parsed``. If a
    function fails on a completion, the result for that text is the exception. The returned function
    raises the exceptions of a function that scores a whole batch, see `rewards.custom.as_batch`.

    Raises:
        ValueError: no function is given, a name is unknown, or `rewards.custom.load_function`
            rejects a function; the message suggests a fix.
    """
    if not functions:
        raise CodedValueError("at least one reward function is needed", code="no-reward")
    batch_functions = [_resolve_batch(name) for name in functions]

    def combined(
        texts: Sequence[str], answers: Sequence[Any], rows: Rows = ()
    ) -> list[Score | Exception]:
        by_function = [function(texts, answers, rows) for function in batch_functions]
        # zip(*...) turns one list per function into one tuple per text
        return [_weighted_sum(functions, scores) for scores in zip(*by_function, strict=True)]

    return combined


def _weighted_sum(functions: Weights, scores: Sequence[Score | Exception]) -> Score | Exception:
    """Return one text's combined score from the scores of all functions, or the first error."""
    reward = 0.0
    breakdown: dict[str, float] = {}
    by_name: dict[str, Score] = {}
    parts = part_names(functions)
    for (name, weight), score in zip(functions.items(), scores, strict=True):
        if isinstance(score, Exception):
            return score
        reward += weight * score.reward
        breakdown[parts[name]] = weight * score.reward
        by_name[name] = score
    judge = by_name[correctness_reward(functions)]
    if len(by_name) == 1:  # keep the breakdown of a single function
        [(name, weight)] = functions.items()
        breakdown = {}
        for part, value in judge.breakdown.items():
            own = f"{name}.{part}" if part == OVERLONG_PART else part
            breakdown[own] = weight * value
    return Score(reward, judge.correct, breakdown, judge.parsed)


def part_names(functions: Weights) -> dict[str, str]:
    """Map each function to its entry in the breakdown: the name without the module, or the full
    name if the short one would be ambiguous.
    """
    counts = Counter(map(_short, functions))
    counts[OVERLONG_PART] += 1
    names = {}
    for name in functions:
        short = _short(name)
        names[name] = short if counts[short] == 1 else name
    return names


def correctness_reward(functions: Weights) -> str:
    """Return the function that decides correctness: the one with the largest absolute weight, the
    first on a tie.
    """
    return max(functions, key=lambda name: abs(functions[name]))


def any_batch_function(functions: Weights) -> bool:
    """Return whether any function takes a batch of completions per call, as async functions do,
    too.

    Raises:
        ValueError: as in `rewards.custom.load_function`.
    """
    return any(name not in REWARDS and is_batch_function(load_function(name)) for name in functions)


def columns(functions: Weights) -> list[str] | None:
    """Return the dataset columns that the functions take as parameters; None if a function takes
    all columns. Built-in rewards take none.

    Raises:
        ValueError: as in `rewards.custom.load_function`.
    """
    found: list[str] = []
    for name in functions:
        if name not in REWARDS:
            function = load_function(name)
            if takes_all_columns(function):
                return None
            found += columns_of(function)
    return found


def prepare(functions: Weights) -> None:
    """Call ``prepare()`` of each function's module, if it has one. The modules must already be
    imported, as they are after `combine_batch`.
    """
    for name in functions:
        hook = getattr(_module_of(name), "prepare", None)
        if hook is not None:
            hook()


def minimum(functions: Weights) -> float:
    """Return the weighted sum of the functions' ``MINIMUM`` values. A function without a
    ``MINIMUM``, or with a negative weight, contributes 0. The modules must already be imported.

    Raises:
        ValueError: a ``MINIMUM`` is not a number.
    """
    total = 0.0
    for name, weight in functions.items():
        if weight > 0:
            value = getattr(_module_of(name), "MINIMUM", 0.0)
            if not is_finite(value):
                raise CodedValueError(
                    f"reward {name}: MINIMUM must be a finite number, got {value!r}",
                    code="invalid-minimum",
                )
            total += weight * float(value)
    return total


def part_weight(functions: Weights, part: str) -> float:
    """Return the weight of a breakdown entry in the reward; 1 if no function produced it. All
    entries of a single function have that function's weight.
    """
    if part == OVERLONG_PART:
        return 1.0
    if len(functions) == 1:
        return next(iter(functions.values()))
    parts = part_names(functions)
    weights = {parts[name]: weight for name, weight in functions.items()}
    return weights.get(part, 1.0)


def _module_of(name: str) -> Any:
    module_name = REWARDS[name].__module__ if name in REWARDS else name.partition(":")[0]
    return sys.modules.get(module_name)


def _short(name: str) -> str:
    return name.rpartition(":")[2]


def _resolve_batch(name: str) -> BatchRewardFunction:
    if name not in REWARDS and ":" not in name:
        near = get_close_matches(name, REWARDS, n=1)
        hint = f"use one of {', '.join(sorted(REWARDS))}, or write your own as module:function"
        if near:
            hint = f"did you mean {near[0]}?"
        raise CodedValueError(f"no reward named {name}; {hint}", code="unknown-reward")
    return as_batch(REWARDS[name] if name in REWARDS else load_function(name), name)
