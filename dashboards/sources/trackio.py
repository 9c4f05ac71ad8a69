"""Read Trackio's database of a project: ``~/.cache/huggingface/trackio/PROJECT.db``.

It has a row per logged step, with the metrics as JSON, and one per run with its configuration.
"""

import json
import shutil
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.sources.content import database_tables, is_database

_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}


def is_project(path: Path) -> bool:
    """Return whether a file is the database of a Trackio project."""
    return is_database(path) and {"metrics", "configs"} <= database_tables(path)


def read_project(path: Path) -> pd.DataFrame:
    """Return one row per logged step, with the columns ``run``, ``step``, a column per metric, and
    ``config.KEY`` for each setting of the run; one row without metrics for a run that logged none.

    The files are copied first: Trackio may be writing, and an open database has a second file.

    Raises:
        ValueError: it is no database that can be read.
    """
    with tempfile.TemporaryDirectory(prefix="loptune-trackio-") as scratch:
        copy = Path(scratch) / "project.db"
        for suffix in ("", "-wal"):
            source = path.with_name(path.name + suffix)
            if source.is_file():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        try:
            with closing(sqlite3.connect(copy)) as connection:
                logged = _rows(connection, "metrics", "metrics, step", "ORDER BY id")
                configured = _rows(connection, "configs", "config", "")
        except sqlite3.Error as error:
            raise ValueError(str(error)) from None
    settings = {
        identity: {
            f"config.{key}": value
            for key, value in _content(config).items()
            if not key.startswith("_")  # Trackio's own: user, time, group
        }
        for identity, _, config in configured
    }
    labels = _labels({identity: name for identity, name, *_ in (*configured, *logged)})
    rows = [
        {"run": labels[identity], "step": step, **_content(metrics), **settings.get(identity, {})}
        for identity, _, metrics, step in logged
    ]
    started = {identity for identity, *_ in logged}
    rows += [
        {"run": labels[identity], **settings[identity]}
        for identity, *_ in configured
        if identity not in started
    ]
    return pd.DataFrame(rows)


def _labels(names: dict[str, str]) -> dict[str, str]:
    """Return a name for each run: its own, with its identity if others are called the same."""
    shared = Counter(names.values())
    return {
        identity: name if shared[name] == 1 else f"{name} ({identity})"
        for identity, name in names.items()
    }


def _rows(connection: sqlite3.Connection, table: str, columns: str, order: str) -> list[Any]:
    """Return identity, name and other columns; an old project has no identity,
    and a name stands for one run.
    """
    names = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    identity = "run_id" if "run_id" in names else "run_name"
    return connection.execute(
        f"SELECT {identity}, run_name, {columns} FROM {table} {order}"
    ).fetchall()


def _content(text: str | bytes) -> dict[str, Any]:
    return {
        key: _NUMBERS.get(value, value) if isinstance(value, str) else value
        for key, value in json.loads(text).items()
    }
