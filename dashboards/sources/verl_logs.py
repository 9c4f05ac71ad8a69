"""Read logs of verl's ``file`` logger: JSON Lines with a step and its metrics."""

import json
from pathlib import Path

import pandas as pd

from dashboards.sources.content import read_text
from loptune.files import open_regular
from loptune.row_files import read_json

_FIRST_BYTES = 1 << 20  # length limit of the first line


def is_log(path: Path) -> bool:
    """Return whether the first line of a file is ``{"step": ..., "data": {...}}``."""
    with open_regular(path) as file:
        line = file.readline(_FIRST_BYTES).decode(errors="replace")
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(first, dict)
        and set(first) == {"step", "data"}
        and isinstance(first["data"], dict)
    )


def read_log(path: Path) -> pd.DataFrame:
    """Return one row per line, with a column per metric.

    Raises:
        ConfigError: invalid JSON.
        StorageError: the file is too large.
    """
    read_text(path)  # checks the size
    return pd.DataFrame([{"step": row["step"], **row["data"]} for row in read_json(path)])
