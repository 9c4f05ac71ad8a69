"""Read the database of a Trackio project: ``~/.cache/huggingface/trackio/PROJECT.db``.

One table has a row per logged step with the metrics as JSON, and another table has a row per run
with its configuration.
"""

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.sources.content import MAX_BYTES, database_tables, is_database, open_database
from dashboards.sources.json_tables import parsed_number
from loptune.temporary import temporary_folder


def is_project(path: Path) -> bool:
    """Return whether a file is a Trackio project database."""
    return is_database(path) and {"metrics", "configs"} <= database_tables(path)


def read_project(path: Path) -> pd.DataFrame:
    """Return one row per logged step, with the columns ``run``, ``step``, a column per metric, and
    ``config.KEY`` for each setting of the run. A run that logged nothing has one row without
    metrics.

    The files are copied first, because Trackio may be writing to them. An open database has a
    second file, ``PROJECT.db-wal``, with the latest rows.

    Raises:
        ValueError: the database cannot be read.
    """
    with temporary_folder("trackio") as scratch:
        copy = scratch / "project.db"
        for suffix in ("", "-wal"):
            source = path.with_name(path.name + suffix)
            if source.is_file():
                if source.stat().st_size > MAX_BYTES:
                    raise ValueError(f"{source.name} is larger than {MAX_BYTES >> 20} MiB")
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        try:
            with closing(open_database(copy, "rw")) as connection:
                logged = _rows(connection, "metrics", "metrics, step", "ORDER BY id")
                configured = _rows(connection, "configs", "config", "")
        except sqlite3.Error as error:
            raise ValueError(str(error)) from None
    names: dict[str, str] = {}
    settings: dict[str, dict[str, Any]] = {}
    for identity, name, config in configured:
        names[identity] = name
        settings[identity] = _settings(config)
    for identity, name, _, _ in logged:
        names[identity] = name
    labels = _labels(names)
    rows = []
    without_metrics = dict.fromkeys(settings)
    for identity, _, metrics, step in logged:
        without_metrics.pop(identity, None)
        of_run = settings.get(identity, {})
        rows.append({"run": labels[identity], "step": step, **_content(metrics), **of_run})
    for identity in without_metrics:
        rows.append({"run": labels[identity], **settings[identity]})
    return pd.DataFrame(rows)


def _settings(config: str | bytes) -> dict[str, Any]:
    """Return a run's settings as columns, without the settings that Trackio adds: user, time,
    group.
    """
    settings = {}
    for key, value in _content(config).items():
        if not key.startswith("_"):
            settings[f"config.{key}"] = value
    return settings


def _labels(names: dict[str, str]) -> dict[str, str]:
    """Return id -> label of each run: its name, followed by its id if other runs have the same
    name.
    """
    count = Counter(names.values())
    labels = {}
    for identity, name in names.items():
        labels[identity] = name if count[name] == 1 else f"{name} ({identity})"
    return labels


def _rows(connection: sqlite3.Connection, table: str, columns: str, order: str) -> list[Any]:
    """Return the id, the name and other columns of each row. Old projects have no ids; there, a
    name identifies a run.
    """
    names = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    identity = "run_id" if "run_id" in names else "run_name"
    return connection.execute(
        f"SELECT {identity}, run_name, {columns} FROM {table} {order}"
    ).fetchall()


def _content(text: str | bytes) -> dict[str, Any]:
    return {key: parsed_number(value) for key, value in json.loads(text).items()}
