"""Tables of simulated rates, as Markdown."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike


def percent(hits: ArrayLike) -> str:
    """Return a rate with its standard error, in percent."""
    values = np.asarray(hits, dtype=float)
    if not len(values):
        return "none"
    rate = values.mean()
    return f"{100 * rate:.1f} ± {100 * np.sqrt(rate * (1 - rate) / len(values)):.1f}"


def mean(values: ArrayLike, digits: int = 2) -> str:
    """Return a mean with its standard error."""
    sample = np.asarray(values, dtype=float)
    return f"{sample.mean():.{digits}f} ± {sample.std(ddof=1) / np.sqrt(len(sample)):.{digits}f}"


def print_rows(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table under its title."""
    widths = [
        max(len(line[column]) for line in [headings, *rows]) for column in range(len(headings))
    ]
    print(f"\n{title}\n")
    for line in [headings, ["-" * width for width in widths], *rows]:
        print(
            "| "
            + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            + " |"
        )
    print(flush=True)
