"""Reward functions: what a completion is worth.

Add one by writing ``score(text, answer) -> Score`` in a file here and naming it in ``REWARDS``, or keep it
anywhere on the import path and name it ``module:function`` in the configuration. Such a function may also return
a plain number (then a positive one counts as correct); its module may define ``prepare()``, which is called once
before the first completion, and ``MINIMUM``, the score of a completion whose scoring fails.
"""

import importlib
import math
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from rewards import knights_knaves, math_answers, think_format
from rewards.score import RewardFunction, Score

__all__ = ["REWARDS", "RewardFunction", "Score", "combine", "minimum", "prepare", "resolve"]

REWARDS: dict[str, RewardFunction] = {
    "knights_knaves": knights_knaves.score,
    "math": math_answers.score,
    "format": think_format.score,
}


def resolve(name: str) -> RewardFunction:
    """The reward function behind a name of ``REWARDS`` or ``module:function``.

    Raises:
        ValueError: no such name, module or function; the text says what to write instead.
    """
    if name in REWARDS:
        return REWARDS[name]
    module_name, separator, function_name = name.partition(":")
    if not separator:
        near = get_close_matches(name, REWARDS, n=1)
        meant = f"did you mean {near[0]}?" if near else f"use one of {', '.join(sorted(REWARDS))}"
        raise ValueError(f"no reward named {name}; {meant} Your own is written module:function")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"reward {name}: cannot import {module_name} ({error})") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"reward {name}: {module_name} has no function {function_name}")
    return _scored(function, name)


def combine(functions: Mapping[str, float]) -> RewardFunction:
    """The weighted sum of reward functions.

    Several functions give a breakdown of one part each. The one with the largest weight (the first of them on a
    tie) decides what counts as correct and as parsed.

    Args:
        functions: name as in ``resolve`` -> weight.

    Raises:
        ValueError: a name that ``resolve`` refuses, or no function at all.
    """
    if not functions:
        raise ValueError("name at least one reward function")
    parts = [(_short(name), weight, resolve(name)) for name, weight in functions.items()]
    judge = max(range(len(parts)), key=lambda index: abs(parts[index][1]))

    def weighted_sum(text: str, answer: Any) -> Score:
        scores = [function(text, answer) for _, _, function in parts]
        if len(parts) == 1:
            (_, weight, _), (score,) = parts[0], scores
            breakdown = {part: weight * value for part, value in score.breakdown.items()}
        else:
            breakdown = {
                name: weight * score.reward for (name, weight, _), score in zip(parts, scores, strict=True)
            }
        reward = sum(weight * score.reward for (_, weight, _), score in zip(parts, scores, strict=True))
        return Score(reward, scores[judge].correct, breakdown, scores[judge].parsed)

    return weighted_sum


def prepare(functions: Mapping[str, float]) -> None:
    """Do the slow imports of the named functions now."""
    for name in functions:
        hook = getattr(_module_of(name), "prepare", None)
        if hook is not None:
            hook()


def minimum(functions: Mapping[str, float]) -> float:
    """The weighted sum of the functions' lowest scores; one that declares none, or is subtracted, counts 0."""
    return sum(
        weight * float(getattr(_module_of(name), "MINIMUM", 0.0))
        for name, weight in functions.items()
        if weight > 0
    )


def _module_of(name: str) -> Any:
    module_name = REWARDS[name].__module__ if name in REWARDS else name.partition(":")[0]
    return sys.modules.get(module_name)


def _short(name: str) -> str:
    return name.rpartition(":")[2]


def _scored(function: Callable[[str, Any], Any], name: str) -> RewardFunction:
    def scored(text: str, answer: Any) -> Score:
        result = function(text, answer)
        if isinstance(result, Score):
            return result
        if not isinstance(result, int | float) or not math.isfinite(result):
            raise ValueError(f"reward {name} returned {result!r}; expected a Score or a finite number")
        return Score(float(result), result > 0, {_short(name): float(result)})

    return scored
