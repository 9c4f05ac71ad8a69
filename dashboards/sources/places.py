"""Read the runs given on the command line: files, folders, or an MLflow experiment."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from dashboards.sources.conditions import conditions
from dashboards.sources.content import check_computes_nothing, database_tables
from dashboards.sources.delimited import NOTES
from dashboards.sources.mlflow_folders import folder_of, is_folder_of_mlflow, read_folder
from dashboards.sources.mlflow_table import table_of_runs
from dashboards.sources.names import find_column, split_names
from dashboards.sources.run_tables import read_files
from loptune.errors import ConfigError
from loptune.extras import require
from loptune.sqlite_url import sqlite_url
from loptune.yaml_document import nearest

_MLFLOW_TABLES = {"experiments", "alembic_version"}  # tables of MLflow's databases


def read_place(place: str, score: str, seed: str, others: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows of files or folders; MLflow folders and databases are recognized.

    Args:
        place: file, folder or pattern.
        score: name of the score metric, for MLflow runs.
        seed: name of the seed parameter, for MLflow runs; empty: found by its name.
        others: further metrics of MLflow runs, which become columns.

    Raises:
        UserError: see `read_files` and `read_experiment`.
    """
    path = Path(place)
    if path.is_dir() and is_folder_of_mlflow(path):
        return table_of_runs(read_folder(path), place, score, seed, others)
    if path.is_file() and database_tables(path) >= _MLFLOW_TABLES:
        check_computes_nothing(path)
        require("mlflow", place)
        return read_experiment(sqlite_url(path.resolve()), None, score, seed, others)
    return read_files(place)


def read_experiment(
    uri: str, experiment: str | None, score: str, seed: str, others: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the runs of an MLflow store, or of one experiment in it, as `table_of_runs` does.

    Args:
        uri: URI of the store, or a folder.
        experiment: name of the experiment; None: all.
        score: name of the score metric.
        seed: name of the seed parameter; empty: found by its name.
        others: further metrics, which become columns.

    Raises:
        ConfigError: no run has the score or the seed.
        MissingError: no such experiment, or it has no runs.
        StorageError: the store cannot be read.
    """
    folder = folder_of(uri)
    if folder is not None:
        return table_of_runs(read_folder(folder, experiment), uri, score, seed, others)
    require("mlflow", uri)
    from dashboards.sources.mlflow import read_runs  # MLflow takes two seconds to import

    return table_of_runs(read_runs(uri, experiment), uri, score, seed, others)


def select(table: pd.DataFrame, where: str, names: str = "") -> pd.DataFrame:
    """Return the rows that meet every condition of ``where``, such as ``lr>=1e-3,loss=grpo``, with
    the parts of run names that match the pattern ``names`` as columns.

    Raises:
        ConfigError: a condition or the pattern is invalid, or the column of a condition does not
            exist.
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
