"""User-defined rules, named ``module:Class`` or ``module:function``.

A class can have parameters. A function has none and takes the same argument as ``__call__``::

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
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import create_model

from trainer.errors import ConfigError, first_line


@functools.cache
def load_rule(name: str, base: type[Any], folder: str) -> type[Any]:
    """Load ``module:Class`` or ``module:function`` as a subclass of ``base``.

    The module is searched on the import path, then in ``folder``.

    Raises:
        ValueError: unknown module, class or function, or wrong type; the message suggests a fix.
    """
    module_name, _, attribute = name.partition(":")
    module = _import_module(module_name, folder)
    value = getattr(module, attribute, None)
    if value is None:
        raise ValueError(f"{module.__file__} has no {attribute}")
    if isinstance(value, type) and issubclass(value, base):
        # a rule that inherits from a built-in one inherits its name, a literal
        named: type[Any] = create_model(
            attribute, __base__=value, __module__=module_name, name=(str, name)
        )
        return named
    if isinstance(value, type) or not callable(value):
        raise ValueError(
            f"{name} is not a rule: define `class {attribute}({base.__name__})` (from "
            f"trainer.rules import {base.__name__}) or a function"
        )
    return _function_rule(value, base, attribute)


def load_again(name: str, base: type[Any], folder: str, parameters: Mapping[str, Any]) -> Any:
    """Rebuild a pickled rule in another process."""
    rule: type[Any] = load_rule(name, base, folder)  # type: ignore[arg-type]
    return rule(**parameters)


def folder_of(name: str) -> str:
    """Return the folder on the import path in which the loaded module of a rule was found."""
    module_name = name.partition(":")[0]
    file = Path(str(sys.modules[module_name].__file__))
    is_package = file.name == "__init__.py"
    return str(file.parents[module_name.count(".") + is_package])


@contextmanager
def errors_located(name: str) -> Iterator[None]:
    """Convert an exception of the user-defined rule ``name`` to a ConfigError with file and line.

    Raises:
        ConfigError: the rule raised an exception.
    """
    module_name = name.partition(":")[0]
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"rule {name} raised {_in_words(error)}",
            _place(error, module_name) or name,
            "fix the rule",
            code="rule-failed",
        ) from error


def _import_module(name: str, folder: str) -> ModuleType:
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that user files do not shadow installed modules
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        file = f"{name.replace('.', '/')}.py"
        advice = f"run in the folder of {file}, or add it to PYTHONPATH; searched {folder}"
        why = _place(error, name) or advice
        raise ValueError(f"cannot import {name}: {_in_words(error)}, {why}") from error


def _function_rule(function: Callable[[Any], Any], base: type[Any], name: str) -> type[Any]:
    """Return a rule without parameters that calls a user's function."""

    class FunctionRule(base):  # type: ignore[misc]
        def __call__(self, inputs: Any) -> Any:
            return function(inputs)

    FunctionRule.__name__ = name
    FunctionRule.__module__ = function.__module__
    return FunctionRule


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _place(error: BaseException, module: str) -> str:
    """Return ``file:line`` of the traceback's last frame in ``module``, or an empty string."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    file = f"/{module.replace('.', '/')}.py"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.endswith(file)
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
