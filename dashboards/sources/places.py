"""Read the runs that a person names: files, folders, or an experiment of MLflow."""

from pathlib import Path

import pandas as pd

from dashboards.sources.conditions import conditions
from dashboards.sources.content import is_database
from dashboards.sources.names import find_column, split_names
from dashboards.sources.run_tables import NOTES, read_files
from loptune.errors import ConfigError
from loptune.yaml_document import nearest


def read_place(place: str, score: str, seed: str) -> pd.DataFrame:
    """Return the rows of files or folders; a folder or database of MLflow is found by itself.

    Raises:
        UserError: see `read_files` and `read_store`.
    """
    path = Path(place)
    if path.is_dir() or (path.is_file() and is_database(path)):
        from dashboards.sources.mlflow import is_store, read_store  # MLflow takes two seconds

        if is_store(path):
            return read_store(path, score, seed)
    return read_files(place)


def select(table: pd.DataFrame, where: str, names: str = "") -> pd.DataFrame:
    """Return the rows that meet every condition of ``where``, such as ``lr>=1e-3,loss=grpo``, with
    the parts of runs' names that the pattern ``names`` gives as columns.

    Raises:
        ConfigError: a condition names no column, or is none.
    """
    notes = list(table.attrs.get(NOTES, ()))
    if names:
        table, left_out = split_names(table, names)
        notes += left_out
    for condition in conditions(where):
        column = find_column(condition.column, table, anywhere=True)
        if column is None:
            raise ConfigError(
                f"no column {condition.column}",
                "--where",
                nearest(condition.column, map(str, table.columns)),
                code="unknown-column",
            )
        table = table[condition.holds(table[column])]
    table.attrs[NOTES] = notes
    return table
