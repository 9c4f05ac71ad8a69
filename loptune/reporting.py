"""``lt.report``: a user's own script reports an evaluation. Importing this module loads only the
standard library.
"""

import json
import operator
import os
import sys
from collections.abc import Mapping
from typing import Any

from loptune.errors import ConfigError

PREFIX = "[loptune]"  # of metric lines on standard output


def report(metrics: Mapping[str, Any], *, step: int) -> None:
    """Report an evaluation from your own training script: print the line that a sweep reads.

    The line is the same outside a sweep, and nothing else happens there, so a script runs and reads
    alike by hand. Of several ranks (RANK, as torchrun sets it) only rank 0 prints. A later report
    of the same step replaces the values of the earlier one.

    Args:
        metrics: name -> number, also a tensor or array with one element. NaN or None is an
            evaluation that failed.
        step: training step, from 0.

    Example:
        >>> import loptune as lt
        >>> lt.report({"eval/accuracy": 0.4, "loss": 1.5}, step=10)
        [loptune] {"step": 10, "eval/accuracy": 0.4, "loss": 1.5}

    Raises:
        ConfigError: a name is not a string, a value is not one number, or the step is not an
            integer from 0.
    """
    line = evaluation_line(metrics, step)
    if os.environ.get("RANK", "0") == "0":
        # one write, so that a line of another process does not come between
        sys.stdout.write(f"{PREFIX} {line}\n")
        sys.stdout.flush()


def evaluation_line(metrics: Mapping[str, Any], step: int) -> str:
    """Return the JSON of an evaluation.

    Raises:
        ConfigError: as `report`.
    """
    line: dict[str, float | int | None] = {"step": _step(step)}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ConfigError(
                f"{name!r} is not a name of a metric",
                "lt.report",
                'pass {"eval/accuracy": 0.61}',
                code="metric-name",
            )
        if name == "step":
            raise ConfigError(
                "step is not a metric", "lt.report", "pass it as step=10", code="metric-name"
            )
        line[name] = _number(name, value)
    return json.dumps(line)


def _step(step: Any) -> int:
    """Return a step as an int.

    Raises:
        ConfigError: it is not an integer from 0.
    """
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigError(
            f"{step!r} is not a training step",
            "lt.report, step",
            "pass an integer from 0, such as step=10",
            key="step",
            code="metric-step",
        )
    return number


def _number(name: str, value: Any) -> float | None:
    """Return a value as a float; None stays None.

    Raises:
        ConfigError: it is not one number.
    """
    if value is None:
        return None
    try:
        if isinstance(value, str | bytes | bool):
            raise TypeError(type(value).__name__)
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise ConfigError(
            f"{name} is not one number: {str(value)[:80]}",
            f"lt.report, {name}",
            "pass a float, or a tensor with one element",
            key=name,
            code="metric-not-a-number",
        ) from None
