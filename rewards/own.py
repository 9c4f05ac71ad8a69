"""A user's own reward functions, named ``module:function``.

Two forms, each plain or ``async``; a score is a ``Score`` or a number (then a positive one counts
as correct)::

    def exact(text, answer):                # one completion
        return float(text.strip() == answer)

    async def judged(texts, answers):       # a whole batch: a parameter is called texts or answers
        return await asyncio.gather(*map(ask_the_judge, texts, answers))

    def allowed(text, numbers):             # others are columns of the problem's row; in a batch
        return float(set(text.split()) <= set(numbers))    # they are lists of columns

Arguments are bound by the parameters' names, in any order; a function that names neither text nor
answer takes them by position. An ``async`` function of one completion is called for all completions
of a batch at once.
"""

import asyncio
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from rewards.score import BatchRewardFunction, Rows, Score

Function = Callable[..., Any]  # a user's own, of any form

_BATCH_PARAMETERS = ("texts", "answers")
_PARAMETERS = ("text", "answer")
OWN_PACKAGES = ("rewards", "trainer", "sweep", "dashboards", "search_spaces")


def load_function(name: str) -> Function:
    """Return the function behind ``module:function``.

    Raises:
        ValueError: no such module or function, or one written for another trainer; says what to
            write instead.
    """
    module_name, _, function_name = name.partition(":")
    package = module_name.partition(".")[0]
    why = ""
    if package in OWN_PACKAGES:
        why = f"; {package} is loptune's own package: give yours another name"
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"reward {name}: cannot import {module_name} ({error}){why}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ValueError(f"reward {name}: {module_name} has no function {function_name}{why}")
    parameters = _parameters(function)
    if "completions" in parameters:
        raise ValueError(
            f"reward {name} is written for TRL; here it is def {function_name}(texts, answers)"
        )
    if "texts" in parameters and "text" in parameters:
        raise ValueError(f"reward {name} takes text and texts: one completion, or a batch?")
    return cast(Function, function)


def takes_batch(function: Function) -> bool:
    """Return whether a function wants many completions in one call."""
    return _is_async(function) or _is_batch(function)


def as_batch(function: Function, name: str) -> BatchRewardFunction:
    """Return a function of any form as one of a batch that returns a ``Score`` for every text, or
    the error that the text met.

    The result raises what a function of a batch raises, and a ValueError where that returns
    something else than a list of as many scores.
    """
    label = name.rpartition(":")[2]
    call = _caller(function, name)

    def scored(
        texts: Sequence[str], answers: Sequence[Any], rows: Rows = ()
    ) -> list[Score | Exception]:
        results = call(texts, answers, rows or [{}] * len(texts))
        try:
            scores = list(results)
        except TypeError:
            raise ValueError(
                f"reward {name} returned {results!r}; expected a list of scores"
            ) from None
        if len(scores) != len(texts):
            raise ValueError(f"reward {name} returned {len(scores)} scores for {len(texts)} texts")
        return [_as_score(result, name, label) for result in scores]

    return scored


def columns_of(function: Function) -> dict[str, bool]:
    """Return the columns that a function asks for by its parameters' names -> whether it cannot do
    without.
    """
    parameters = _parameters(function)
    given: tuple[str, ...] = (*_PARAMETERS, *_BATCH_PARAMETERS)
    if not set(given) & set(parameters):
        given = (*list(parameters)[:2],)  # by position
    return {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in parameters.items()
        if name not in given
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }


def _caller(
    function: Function, name: str
) -> Callable[[Sequence[str], Sequence[Any], Sequence[Any]], Any]:
    columns = columns_of(function)
    by_name = {*_parameters(function)} & {*_PARAMETERS, *_BATCH_PARAMETERS}
    is_batch = _is_batch(function)
    is_async = _is_async(function)

    def call(given: Mapping[str, Any]) -> Any:
        for column, needed in columns.items():
            if needed and column not in given:
                raise ValueError(
                    f"reward {name} asks for {column}, and the row has no such column: name its "
                    "parameters text, "
                    "answer (or texts, answers) and columns of the data, or give them defaults"
                )
        positional = [] if by_name else [given["text"], given["answer"]]
        return function(
            *positional, **{key: given[key] for key in given if key in by_name or key in columns}
        )

    def results(texts: Sequence[str], answers: Sequence[Any], rows: Rows) -> Any:
        if is_batch:
            columns_there = {column for row in rows for column in row}
            lists = {column: [row.get(column) for row in rows] for column in columns_there}
            result = call({**lists, "texts": texts, "answers": answers})
            return _event_loop().run(result) if is_async else result
        each = [
            {**row, "text": text, "answer": answer}
            for text, answer, row in zip(texts, answers, rows, strict=True)
        ]
        if is_async:
            return _event_loop().run(_all_of(call, each))
        return [_attempt(call, given) for given in each]

    return results


def _attempt(call: Function, given: Mapping[str, Any]) -> Any:
    """Return what a call returns, or the error that it raises."""
    try:
        return call(given)
    except Exception as error:
        return error


async def _all_of(call: Function, each: Sequence[Mapping[str, Any]]) -> list[Any]:
    async def result_of(given: Mapping[str, Any]) -> Any:
        return await call(given)

    return await asyncio.gather(*map(result_of, each), return_exceptions=True)


@functools.cache
def _event_loop() -> asyncio.Runner:
    # One loop for the life of the process, so that a function's open connections serve all its
    # calls.
    return asyncio.Runner()


def _is_async(function: Function) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  an object's method may be the asynchronous part
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _is_batch(function: Function) -> bool:
    return not {*_BATCH_PARAMETERS}.isdisjoint(_parameters(function))


def _parameters(function: Function) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some functions written in C
        return {}


def _as_score(result: Any, name: str, label: str) -> Score | Exception:
    if isinstance(result, Score | Exception):
        return result
    try:
        value = math.nan if isinstance(result, str | bytes) else float(result)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        return ValueError(f"reward {name} returned {result!r}; expected a Score or a finite number")
    return Score(value, value > 0, {label: value})
