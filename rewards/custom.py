"""A user's own reward functions, named ``module:function``.

A function scores one completion or a batch, and may be ``async``. It returns a ``Score`` or a
number; a positive number counts as correct::

    def exact(text, answer):                # one completion
        return float(text.strip() == answer)

    async def judged(texts, answers):       # a batch: has a parameter named texts
        return await asyncio.gather(*map(ask_the_judge, texts, answers))

    def allowed(text, numbers):             # other parameters are dataset columns
        return float(set(text.split()) <= set(numbers))

    def graded(text, answer, **columns):    # all other columns of the dataset
        return float(text == answer) * columns["points"]

Arguments are passed by name. ``answer`` belongs to ``text`` and ``answers`` to ``texts``;
``answers`` with ``text``, or ``answer`` with ``texts``, is a dataset column. A batch function gets
a list of values for each column. A function without any of these names receives text and answer by
position; a function with only ``answers`` is a batch function.
An ``async`` per-completion function is awaited for all completions of a batch concurrently.
"""

import functools
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, cast

from rewards.errors import CodedValueError
from rewards.score import BatchRewardFunction, Rows, Score
from rewards.user_code import load_named

if TYPE_CHECKING:
    import asyncio

Function = Callable[..., Any]  # a user's reward function, any signature

_BATCH_PARAMETERS = ("texts", "answers")
_PARAMETERS = ("text", "answer")
# parameter that is not a column -> the parameter next to it, and the name that was probably meant
_ANSWERS = {"answers": ("text", "answer"), "answer": ("texts", "answers")}


def load_function(name: str) -> Function:
    """Return the function behind ``module:function``.

    Raises:
        ValueError: the function cannot be loaded (`UserCodeError`), is not callable, has both
            ``text`` and ``texts`` as parameters, or has TRL's signature.
    """
    function = load_named(name, "reward")
    if not callable(function):
        raise CodedValueError(
            f"reward {name} is not a function: it is {function!r}", code="not-a-function"
        )
    function_name = name.partition(":")[2]
    parameters = _parameters(function)
    if "completions" in parameters:
        raise CodedValueError(
            f"reward {name} has TRL's signature; loptune expects def {function_name}(texts, "
            "answers)",
            code="signature-of-trl",
        )
    if "texts" in parameters and "text" in parameters:
        raise CodedValueError(
            f"reward {name} has both text and texts as parameters: use text for one "
            "completion or texts for a batch",
            code="text-and-texts",
        )
    return cast(Function, function)


def is_batch_function(function: Function) -> bool:
    """Return whether a function should receive a batch of completions per call, as batch and async
    functions do.
    """
    return _is_async(function) or _is_batch(function)


def as_batch(function: Function, name: str) -> BatchRewardFunction:
    """Wrap a function of any signature as a batch function that returns a ``Score`` or an exception
    for every text. The exception is the one that the function raised or returned for the text, or a
    ValueError if its result is neither a ``Score`` nor a finite number.

    The wrapper propagates the exceptions of a batch function. It raises ValueError unless a batch
    function returns one score per text. ``name`` is ``module:function``, or the name of a built-in
    reward; messages contain it.
    """
    label = name.rpartition(":")[2]
    call = _caller(function, name)

    def scored(
        texts: Sequence[str], answers: Sequence[Any], rows: Rows = ()
    ) -> list[Score | Exception]:
        results = call(texts, answers, rows or [{}] * len(texts))
        # iterating over a mapping would yield its keys, and a set has no order
        is_ordered = not isinstance(results, Mapping | Set | str | bytes)
        try:
            scores = list(results) if is_ordered else None
        except TypeError:
            scores = None
        if scores is None:
            raise CodedValueError(
                f"reward {name} returned {results!r}; expected a list of scores", code="not-a-list"
            )
        if len(scores) != len(texts):
            raise CodedValueError(
                f"reward {name} returned {len(scores)} scores for {len(texts)} texts",
                code="wrong-number-of-scores",
            )
        return [_as_score(result, name, label) for result in scores]

    return scored


def columns_of(function: Function) -> dict[str, bool]:
    """Map each dataset column among a function's parameters to whether it is required."""
    given = _given_by_name(function) or _given_by_position(function)
    return {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in _parameters(function).items()
        if name not in given
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }


def takes_all_columns(function: Function) -> bool:
    """Return whether a function has a parameter like ``**columns``, which receives all columns.

    A wrapper with ``(*args, **kwargs)`` does not count: the function that it calls may not accept
    all columns.
    """
    kinds = [parameter.kind for parameter in _parameters(function).values()]
    return inspect.Parameter.VAR_KEYWORD in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds


def _caller(
    function: Function, name: str
) -> Callable[[Sequence[str], Sequence[Any], Sequence[Any]], Any]:
    """Return a function of texts, answers and rows that calls the reward once for a batch, or once
    for each text.
    """
    call = _Call(function, name)
    is_async = _is_async(function)

    def on_batch(texts: Sequence[str], answers: Sequence[Any], rows: Rows) -> Any:
        given: dict[str, Any] = {}
        for column in set(itertools.chain.from_iterable(rows)):
            given[column] = [row.get(column) for row in rows]
        result = call({**given, "texts": texts, "answers": answers})
        return _event_loop().run(result) if is_async else result

    def on_each(texts: Sequence[str], answers: Sequence[Any], rows: Rows) -> Any:
        each = []
        for text, answer, row in zip(texts, answers, rows, strict=True):
            each.append({**row, "text": text, "answer": answer})
        if is_async:
            return _event_loop().run(_gather(call, each))
        return [_attempt(call, given) for given in each]

    return on_batch if _is_batch(function) else on_each


class _Call:
    """Calls a user's function with the values that its signature accepts."""

    def __init__(self, function: Function, name: str) -> None:
        self._function = function
        self._name = name
        self._columns = columns_of(function)
        self._takes_all = takes_all_columns(function)
        self._by_name = _given_by_name(function)
        self._by_position = set() if self._by_name else _given_by_position(function)

    def __call__(self, given: Mapping[str, Any]) -> Any:
        for column, is_required in self._columns.items():
            if is_required and column not in given:
                remedy = (
                    "rename it to text or answer (texts or answers for a batch) or to a column, or "
                    "give it a default"
                )
                if self._by_name == {"answers"}:
                    remedy = (
                        "a parameter named answers makes the reward a batch function: use texts "
                        "and answers for a batch, or text and answer for one completion"
                    )
                if column in _ANSWERS:
                    beside, meant = _ANSWERS[column]
                    remedy = f"next to {beside}, the reference answer is called {meant}"
                raise CodedValueError(
                    f"reward {self._name} has a parameter {column}, but the row has no such "
                    f"column: {remedy}",
                    code="no-such-column",
                )
        named = {}
        for key, value in given.items():
            if self._takes_all or key in self._by_name or key in self._columns:
                named[key] = value
        if self._by_name:
            return self._function(**named)
        for key in self._by_position.union(_PARAMETERS):
            named.pop(key, None)
        return self._function(given["text"], given["answer"], **named)


def _attempt(call: Function, given: Mapping[str, Any]) -> Any:
    """Return the result of the call, or the exception it raised."""
    try:
        return call(given)
    except Exception as error:
        return error


async def _gather(call: Function, each: Sequence[Mapping[str, Any]]) -> list[Any]:
    async def result_of(given: Mapping[str, Any]) -> Any:
        return await call(given)

    import asyncio  # imported here, because most rewards are not coroutines

    return await asyncio.gather(*map(result_of, each), return_exceptions=True)


@functools.cache
def _event_loop() -> "asyncio.Runner":
    # One event loop per process, so that a function can reuse its open connections.
    import asyncio

    return asyncio.Runner()


def _is_async(function: Function) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  an instance may have an async __call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _is_batch(function: Function) -> bool:
    parameters = _parameters(function)
    return "texts" in parameters or ("answers" in parameters and "text" not in parameters)


def _given_by_name(function: Function) -> set[str]:
    """Return the parameters that receive the text and the answer, or the texts and answers, by
    name.
    """
    names = _BATCH_PARAMETERS if _is_batch(function) else _PARAMETERS
    return {
        name
        for name, parameter in _parameters(function).items()
        if name in names and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
    }


def _given_by_position(function: Function) -> set[str]:
    """Return the names of the two parameters that receive text and answer by position."""
    return set(list(_parameters(function))[:2])


def _parameters(function: Function) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some C functions have no signature
        return {}


def _as_score(result: Any, name: str, label: str) -> Score | Exception:
    if isinstance(result, Exception):
        return result
    if isinstance(result, Score):
        return _fault_of(result, name) or result
    if not is_finite(result):
        return ValueError(f"reward {name} returned {result!r}; expected a Score or a finite number")
    value = float(result)
    return Score(value, value > 0, {label: value})


def _fault_of(score: Score, name: str) -> CodedValueError | None:
    """Return the error for a score whose fields have wrong values; None for a usable score."""
    parts: Any = score.breakdown
    if not isinstance(parts, Mapping):
        return CodedValueError(
            f"reward {name} returned a Score with breakdown {parts!r}; expected a mapping",
            code="not-a-mapping",
        )
    numbers = {"reward": score.reward}
    for part, value in parts.items():
        numbers[f"breakdown[{part!r}]"] = value
    for field, value in numbers.items():
        if not is_finite(value):
            return CodedValueError(
                f"reward {name} returned a Score with {field} {value!r}; expected a finite number",
                code="reward-not-finite",
            )
    for field in ("correct", "parsed"):
        value = getattr(score, field)
        if not isinstance(value, bool):
            return CodedValueError(
                f"reward {name} returned a Score with {field} {value!r}; expected a bool",
                code="not-a-bool",
            )
    return None


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that a float can hold, and neither NaN nor infinite."""
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):
        return False
