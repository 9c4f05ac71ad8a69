"""Table of the supported file formats: how each is recognized, and its reader."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dashboards.sources import (
    content,
    delimited,
    json_tables,
    optuna_studies,
    tensorboard,
    trackio,
    verl_logs,
    wandb_tables,
)
from loptune.errors import ConfigError, StorageError, UserError, first_line, shortened
from loptune.extras import require
from loptune.files import check_regular
from rewards.limits import memory

_MAX_REASON = 200  # length limit of a reason in a message
_CELL_BYTES = 8  # size of a number, or of a reference to a string
_PARQUET_MIB = 2560  # memory limit; Arrow alone reserves 1 GiB


@dataclass(frozen=True)
class Format:
    """A file format. The first of `FORMATS` that recognizes a file reads it."""

    name: str
    patterns: tuple[str, ...]  # glob patterns for the lower-case file name
    read: Callable[[Path], pd.DataFrame]
    recognizes: Callable[[Path], bool] | None = None  # checks the content, too


def _read_parquet(path: Path) -> pd.DataFrame:
    """Return the rows of a Parquet file. A value that is stored once may fill every row, so a small
    file may need much memory: the number of cells and the memory are limited separately.

    Raises:
        MissingError: pyarrow is not installed.
        StorageError: the table is too large.
    """
    require("pyarrow", str(path))
    from pyarrow.parquet import read_metadata

    described = read_metadata(path)
    if described.num_rows * described.num_columns * _CELL_BYTES > content.MAX_BYTES:
        raise content.too_large(path)
    with memory(_PARQUET_MIB):
        table = pd.read_parquet(path, use_threads=False)
        for name in table.select_dtypes("object"):
            if table[name].map(lambda cell: isinstance(cell, np.ndarray | dict)).any():
                table[name] = table[name].map(_without_arrays)
    named = any(name is not None for name in table.index.names)
    return table.reset_index() if named else table


def _without_arrays(value: Any) -> Any:
    """Return a cell with lists in place of arrays, as in JSON, because arrays cannot be compared or
    grouped.
    """
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_without_arrays(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_arrays(item) for key, item in value.items()}
    return value


def _read_text_table(path: Path) -> pd.DataFrame:
    return wandb_tables.expand(delimited.read_delimited(path))


def _read_json(path: Path) -> pd.DataFrame:
    return wandb_tables.expand(json_tables.read_json_table(path))


FORMATS = (
    Format("TensorBoard events", (tensorboard.PATTERN,), tensorboard.read_events),
    Format("verl's log", ("*.jsonl",), verl_logs.read_log, verl_logs.is_log),
    Format("JSON Lines", ("*.jsonl", "*.ndjson"), json_tables.read_json_lines),
    Format(
        "Optuna study",
        ("*.db", "*.sqlite", "*.sqlite3", "*.log", "*.journal"),
        optuna_studies.read_study,
        optuna_studies.is_study,
    ),
    Format("Trackio project", ("*.db",), trackio.read_project, trackio.is_project),
    Format("JSON", ("*.json",), _read_json),
    Format("Parquet", ("*.parquet",), _read_parquet),
    Format("CSV", ("*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz", "*.txt"), _read_text_table),
)
_REMEDIES = {
    ("*.npy", "*.npz"): "arrays have no column names: save a CSV table with one column per "
    "setting and one for the score",
    ("*.pkl", "*.pickle", "*.pt", "*.pth", "*.bin", "*.ckpt"): "loading it could run code: save a "
    "table as CSV or JSON",
    ("*.xlsx", "*.xls", "*.ods"): "save the sheet as CSV",
    ("*.wandb",): "pass its folder, or export the project's table of runs as CSV",
    ("*.db", "*.sqlite", "*.sqlite3"): "supported databases: Optuna studies, "
    "Trackio projects, MLflow stores (mlflow:EXPERIMENT --store sqlite:///FILE)",
}


def read_table(path: Path) -> pd.DataFrame:
    """Return the rows of a file.

    Raises:
        UserError: the file type is not supported, or the reader rejects the content.
        StorageError: the reader fails with any other exception, so the file is damaged.
    """
    check_regular(path)
    content.check_size(path)
    kind = format_of(path)
    with reading(path, kind.name):
        return kind.read(path)


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Convert any exception of a reader into an error that names the file and its format.

    Raises:
        StorageError: the block raised an exception other than UserError.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # parsers may raise any exception for damaged files
        raise StorageError(
            f"cannot read the file as {kind}: {shortened(first_line(error), _MAX_REASON)}",
            str(path),
            "fix the file or leave it out",
            code="unreadable-file",
        ) from error


def format_of(path: Path) -> Format:
    """Return the format of a file.

    Raises:
        ConfigError: unsupported file type.
    """
    name = path.name.lower()
    for kind in FORMATS:
        by_name = any(fnmatchcase(name, pattern) for pattern in kind.patterns)
        if by_name and (kind.recognizes is None or kind.recognizes(path)):
            return kind
    for patterns, remedy in _REMEDIES.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            raise ConfigError(
                f"{''.join(path.suffixes[-1:])} files are not supported",
                str(path),
                remedy,
                code="unsupported-file-type",
            )
    known = ", ".join(kind.name for kind in FORMATS)
    raise ConfigError(
        f"unsupported file type: {path.suffix or 'no suffix'}",
        str(path),
        f"use one of: {known}",
        code="unsupported-file-type",
    )
