"""``lt.report``: report an evaluation from your own script. This module imports only the standard
library.
"""

import json
import operator
import os
import sys
from collections.abc import Mapping
from typing import Any

from loptune.errors import ConfigError

PREFIX = "[loptune]"  # prefix of metric lines on standard output


def report(metrics: Mapping[str, Any], *, step: int) -> None:
    """Report an evaluation from your own training script: print the line that a sweep reads.

    The script behaves in the same way outside of a sweep. With several ranks (RANK, as set by
    torchrun), only rank 0 prints. A later report for the same step replaces earlier values.

    Args:
        metrics: name -> number, or a tensor or array with one element. NaN or None means that the
            evaluation failed.
        step: training step, 0 or more.

    Example:
        >>> import loptune as lt
        >>> lt.report({"eval/accuracy": 0.4, "loss": 1.5}, step=10)
        [loptune] {"step": 10, "eval/accuracy": 0.4, "loss": 1.5}

    Raises:
        ConfigError: a name is not a printable, non-blank string or is ``step``, a value is not a
            single number, or the step is not a non-negative integer.
    """
    line = evaluation_line(metrics, step)
    if os.environ.get("RANK", "0") == "0":
        # a single write, so that lines of other processes are not interleaved
        sys.stdout.write(f"{PREFIX} {line}\n")
        sys.stdout.flush()


def evaluation_line(metrics: Mapping[str, Any], step: int) -> str:
    """Return the JSON of an evaluation.

    Raises:
        ConfigError: the same as in `report`.
    """
    line: dict[str, float | int | None] = {"step": _step(step)}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ConfigError(
                f"a metric name must be non-blank printable text, got {name!r}",
                "lt.report",
                'pass {"eval/accuracy": 0.61}',
                code="metric-name",
            )
        if name == "step":
            raise ConfigError(
                "step is not a metric",
                "lt.report",
                "pass it as an argument: step=10",
                code="metric-name",
            )
        line[name] = _number(name, value)
    return json.dumps(line)


def _step(step: Any) -> int:
    """Return a step as an int.

    Raises:
        ConfigError: it is not a non-negative integer.
    """
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigError(
            f"{step!r} is not a training step",
            "lt.report, step",
            "pass a non-negative integer, such as step=10",
            key="step",
            code="metric-step",
        )
    return number


def _number(name: str, value: Any) -> float | None:
    """Return a value as a float; None stays None.

    Raises:
        ConfigError: it is not a single number.
    """
    if value is None:
        return None
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError(type(value).__name__)
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ConfigError(
            f"{name} is not a single number: {str(value)[:80]}",
            f"lt.report, {name}",
            "pass a float, or a tensor with one element",
            key=name,
            code="metric-not-a-number",
        ) from None
