"""A user's own reward functions, named ``module:function``.

Two forms, each plain or ``async``; a score is a ``Score`` or a number (then a positive one counts as correct)::

    def exact(text, answer):                # one completion
        return float(text.strip() == answer)

    async def judged(texts, answers):       # a whole batch: the parameters are called texts and answers
        return await asyncio.gather(*map(ask_the_judge, texts, answers))

An ``async`` function of one completion is called for all completions of a batch at the same time.
"""

import asyncio
import functools
import importlib
import importlib.util
import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from rewards.score import BatchRewardFunction, Score

_BATCH_PARAMETERS = ["texts", "answers"]
OWN_PACKAGES = ("rewards", "trainer", "sweep", "dashboards", "search_spaces")


def load_function(name: str) -> Callable[..., Any]:
    """The function behind ``module:function``.

    Raises:
        ValueError: no such module or function, or one written for another trainer; says what to write instead.
    """
    module_name, _, function_name = name.partition(":")
    hidden = _hidden_file(module_name)
    why = f"; {hidden} is hidden by loptune's own package of that name: rename it" if hidden else ""
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"reward {name}: cannot import {module_name} ({error}){why}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"reward {name}: {module_name} has no function {function_name}{why}")
    if "completions" in _parameters(function):
        raise ValueError(f"reward {name} is written for TRL; here it is def {function_name}(texts, answers)")
    return cast(Callable[..., Any], function)


def takes_batch(function: Callable[..., Any]) -> bool:
    """Whether a function wants many completions in one call."""
    return _is_async(function) or _is_batch(function)


def as_batch(function: Callable[..., Any], name: str) -> BatchRewardFunction:
    """A function of any form as one of a batch that returns a ``Score`` for every text.

    The result raises ValueError where the function returns something else than scores.
    """
    label, call = name.rpartition(":")[2], _caller(function)

    def scored(texts: Sequence[str], answers: Sequence[Any]) -> list[Score]:
        results = call(texts, answers)
        try:
            found = list(results)
        except TypeError:
            raise ValueError(f"reward {name} returned {results!r}; expected a list of scores") from None
        if len(found) != len(texts):
            raise ValueError(f"reward {name} returned {len(found)} scores for {len(texts)} texts")
        return [_as_score(result, name, label) for result in found]

    return scored


def _caller(function: Callable[..., Any]) -> Callable[[Sequence[str], Sequence[Any]], Any]:
    if not _is_async(function):
        return function if _is_batch(function) else lambda texts, answers: list(map(function, texts, answers))
    if _is_batch(function):
        return lambda texts, answers: _event_loop().run(function(texts, answers))

    async def together(texts: Sequence[str], answers: Sequence[Any]) -> list[Any]:
        return await asyncio.gather(*map(function, texts, answers))

    return lambda texts, answers: _event_loop().run(together(texts, answers))


@functools.cache
def _event_loop() -> asyncio.Runner:
    # One loop for the life of the process, so that a function's open connections serve all its calls.
    return asyncio.Runner()


def _is_async(function: Callable[..., Any]) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  an object's method may be the asynchronous part
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _is_batch(function: Callable[..., Any]) -> bool:
    return _parameters(function)[:2] == _BATCH_PARAMETERS


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some functions written in C
        return []


def _as_score(result: Any, name: str, label: str) -> Score:
    if isinstance(result, Score):
        return result
    try:
        value = math.nan if isinstance(result, str | bytes) else float(result)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"reward {name} returned {result!r}; expected a Score or a finite number")
    return Score(value, value > 0, {label: value})


def _hidden_file(module_name: str) -> Path | None:
    """The user's file or folder that cannot be imported because a package of ours has its name."""
    package = module_name.partition(".")[0]
    ours = importlib.util.find_spec(package) if package in OWN_PACKAGES else None
    if ours is None or ours.origin is None:
        return None
    candidates = (Path(f"{package}.py").resolve(), Path(package).resolve())
    return next((path for path in candidates if path.exists() and path != Path(ours.origin).parent), None)
