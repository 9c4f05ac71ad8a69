"""A user's own rule, named ``module:Class`` or ``module:function``.

A class has parameters; a function has none and takes what the class's ``__call__`` takes::

    class Cautious(PolicyLoss):
        strength: NonNegative = Field(0.5, description="...")

        def __call__(self, tokens: LossInputs) -> Tensor: ...

    def median_baseline(inputs: AdvantageInputs) -> Tensor: ...
"""

import functools
import importlib
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import create_model

from trainer.errors import ConfigError, first_line
from trainer.section import Section


@dataclass(frozen=True)
class OwnRule:
    """Where a user's rule comes from."""

    name: str  # my_rules:Cautious
    base: type[Section]  # the interface that it has
    folder: str  # in which its module was looked up, after the import path

    def load(self) -> type[Section]:
        """Return the rule's class.

        Raises:
            ValueError: no such module, class or function, or one of another kind; says what to write instead.
        """
        return _load(self)


def load_again(own: OwnRule, parameters: Mapping[str, Any]) -> Section:
    """Build a rule in another process."""
    return own.load()(**parameters)


@functools.cache
def _load(own: OwnRule) -> type[Section]:
    module_name, _, attribute = own.name.partition(":")
    if own.folder not in sys.path:
        sys.path.append(own.folder)  # last: the user's files hide no installed module
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(f"cannot import {module_name}: {_in_words(error)}{_place(error)}") from error
    value = getattr(module, attribute, None)
    if isinstance(value, type) and issubclass(value, own.base):
        return _named(own, value)
    if value is None:
        raise ValueError(f"{module.__file__} has no {attribute}")
    if isinstance(value, type) or not callable(value):
        raise ValueError(
            f"{own.name} is no rule: write `class {attribute}({own.base.__name__})`, from trainer.rules import "
            f"{own.base.__name__}, or a function"
        )
    return _of_function(own, value)


def _of_function(own: OwnRule, function: Callable[..., Any]) -> type[Section]:
    def call(self: Section, inputs: Any) -> Any:
        return function(inputs)

    return _named(own, type(function.__name__, (own.base,), {"__call__": call, "__module__": function.__module__}))


def _named(own: OwnRule, rule: type[Section]) -> type[Section]:
    named: type[Section] = create_model(rule.__name__, __base__=rule, __module__=rule.__module__, name=(str, own.name))
    setattr(named, "own", own)  # noqa: B010  the base of rules declares it
    return named


@contextmanager
def errors_named(rule: Any) -> Iterator[None]:
    """Turn an error that a user's rule raises into one that names its file and line.

    Raises:
        ConfigError: the rule is a user's and raised.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        if rule.own is None:
            raise
        where = _place(error).removeprefix(", ") or rule.name
        raise ConfigError(f"rule {rule.name} raised {_in_words(error)}", where, "correct the rule") from error


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _place(error: BaseException) -> str:
    """Return the user's file and line that an error comes from, after a comma; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f", {error.filename}:{error.lineno}"
    here = Path(__file__).parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        outside = not file.is_relative_to(here) and {"site-packages", "importlib"}.isdisjoint(file.parts)
        if outside and file.is_file() and not file.is_relative_to(Path(importlib.__file__ or "").parents[1]):
            return f", {frame.filename}:{frame.lineno}"
    return ""
