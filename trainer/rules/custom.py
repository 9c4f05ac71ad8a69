"""User-defined rules, named ``module:Class`` or ``module:function``.

A class can have parameters. A function has no parameters and takes the same argument as
``__call__``::

    class Cautious(PolicyLoss):
        strength: NonNegative = Field(0.5, description="...")

        def __call__(self, tokens: LossInputs) -> Tensor: ...

    def median_baseline(inputs: AdvantageInputs) -> Tensor: ...
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic import create_model

from loptune.errors import ConfigError, described
from rewards.errors import CodedValueError
from rewards.user_code import load_named, place_of


@functools.cache
def load_rule(name: str, base: type[Any], folder: str) -> type[Any]:
    """Load ``module:Class`` or ``module:function`` as a subclass of ``base``. The module is looked
    up on the import path, then in ``folder``.

    Cached, so that two configurations with the rule have the same class and can be equal.

    Raises:
        ValueError: ``name`` cannot be loaded (`UserCodeError`) or is not a rule; the message
            suggests a fix.
    """
    value = load_named(name, "rule", folder)
    if isinstance(value, type) and issubclass(value, base):
        # a rule that inherits from a built-in one would inherit its name, too
        return create_model(
            value.__name__, __base__=value, __module__=value.__module__, name=(str, name)
        )
    if isinstance(value, type) or not callable(value):
        attribute = name.partition(":")[2]
        raise CodedValueError(
            f"{name} is not a rule: define `class {attribute}({base.__name__})` (from "
            f"trainer.rules import {base.__name__}) or a function",
            code="not-a-rule",
        )
    return _function_rule(value, base)


def rebuild_rule(name: str, base: type[Any], folder: str, parameters: Mapping[str, Any]) -> Any:
    """Rebuild a pickled rule in another process."""
    rule: type[Any] = load_rule(name, base, folder)  # type: ignore[arg-type]
    return rule(**parameters)


@contextmanager
def errors_located(name: str) -> Iterator[None]:
    """Convert an exception of the user-defined rule ``name`` to a ConfigError with file and line.

    Raises:
        ConfigError: the rule raised an exception.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"rule {name} raised {described(error)}",
            place_of(error, name) or name,
            "fix the rule",
            code="rule-failed",
        ) from error


def _function_rule(function: Callable[[Any], Any], base: type[Any]) -> type[Any]:
    """Return a rule without parameters that calls a user's function."""

    class FunctionRule(base):  # type: ignore[misc]
        def __call__(self, inputs: Any) -> Any:
            return function(inputs)

    FunctionRule.__name__ = function.__name__
    FunctionRule.__module__ = function.__module__
    return FunctionRule
