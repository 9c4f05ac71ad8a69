"""Rows of equal columns, for a terminal."""

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trainer.errors import printable

PLAIN_WIDTH = 100  # where there is no terminal


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
