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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that user files do not shadow installed modules
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        file = f"{module_name.replace('.', '/')}.py"
        advice = f"run in the folder of {file}, or add it to PYTHONPATH; searched {folder}"
        why = _place(error, module_name) or advice
        raise ValueError(f"cannot import {module_name}: {_in_words(error)}, {why}") from error
    value = getattr(module, attribute, None)
    if value is None:
        raise ValueError(f"{module.__file__} has no {attribute}")
    is_class = isinstance(value, type)
    if not (issubclass(value, base) if is_class else callable(value)):
        raise ValueError(
            f"{name} is not a rule: define `class {attribute}({base.__name__})` (from "
            f"trainer.rules import {base.__name__}) or a function"
        )
    parent = value if is_class else base
    named: type[Any] = create_model(
        attribute, __base__=parent, __module__=module_name, name=(str, name)
    )
    methods = {
        method: getattr(parent, method) for method in {"__call__", "choose"} & set(dir(parent))
    }
    if not is_class:
        methods["__call__"] = lambda self, inputs: value(inputs)
    for method, function in methods.items():
        setattr(named, method, _errors_named(name)(function))
    setattr(named, "own", (name, base, folder))  # noqa: B010  the base of rules declares it
    return named


def load_again(loading: tuple[Any, ...], parameters: Mapping[str, Any]) -> Any:
    """Rebuild a pickled rule in another process."""
    return load_rule(*loading)(**parameters)


@contextmanager
def _errors_named(name: str) -> Iterator[None]:
    """Convert an exception of a user-defined rule to a ConfigError with its file and line.

    Raises:
        ConfigError: the rule raised an exception.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        where = _place(error, name.partition(":")[0]) or name
        raise ConfigError(
            f"rule {name} raised {_in_words(error)}", where, "fix the rule", code="rule-failed"
        ) from error


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
