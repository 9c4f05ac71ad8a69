"""Table and number formatting."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from loptune.errors import printable

PLAIN_WIDTH = 100  # width outside of a terminal


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], width: int = PLAIN_WIDTH
) -> None:
    """Print a table. The header is omitted if all headings are empty. The first column is never
    wrapped.

    Outside of a terminal the table is at most ``width`` characters wide.
    """
    table = Table(box=None, pad_edge=False, show_header=any(headings))
    for index, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(Text(printable(str(value))) for value in row))
    console = Console()
    if not console.is_terminal:
        console.width = width
    console.print(table)


def print_json(value: Any) -> None:
    """Print a value as JSON; see `json_text`."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """Return a value as JSON; NaN and infinity become null, and values that JSON does not support
    become text.
    """
    return json.dumps(_finite(value), indent=2, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def counted(number: float, noun: str) -> str:
    """Format a count with its noun: ``1 CPU``, ``2 CPUs``."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def number(value: Any) -> str:
    """Format a float with at most four significant digits. None becomes an empty string, and other
    values are converted with ``str``.
    """
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Format a duration: ``2h 05m``, ``3m 20s`` or ``12s``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
