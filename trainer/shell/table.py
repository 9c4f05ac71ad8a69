"""Rows of equal columns, and numbers in them."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.errors import printable
from trainer.shell.wrapping import PLAIN_WIDTH, fill, text_width


def print_columns(rows: list[dict[str, Any]]) -> None:
    """Print a table with the keys of the first row as headings; the first column is never folded."""
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(rows[0]):
        table.add_column(column, overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(Text(printable(str(value))) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(table)


def print_json(value: Any) -> None:
    """Print a value as JSON; a number that is not finite becomes null."""
    print(json.dumps(_finite(value), indent=2, default=str))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns, each row a line; in a terminal a longer one goes on below its last column."""
    widths = [max(len(line[column]) for line in [headings, *rows]) for column in range(len(headings))]
    for line in [headings, *rows]:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        print(fill(text, text_width(), sum(widths[:-1]) + 2 * len(widths[:-1])) if sys.stdout.isatty() else text)


def counted(number: float, noun: str) -> str:
    """``1 CPU``, ``2 CPUs``."""
    return f"{number:g} {noun}{'' if number == 1 else 's'}"


def number(value: Any) -> str:
    """A value with at most four significant digits; text as it is."""
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
