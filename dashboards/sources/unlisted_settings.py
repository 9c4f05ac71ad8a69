"""Reject tables in which runs differ in a setting that no option includes."""

from collections.abc import Sequence

import pandas as pd

from dashboards.sources.names import RUN_NAMES
from dashboards.sources.run_columns import RunColumns
from dashboards.sources.settings import SETTINGS_PREFIXES
from dashboards.sources.states import STATE
from dashboards.sources.wandb_tables import RUN_COLUMNS, is_run_table
from loptune.errors import ConfigError, listed

_MAX_NAMED = 8  # maximum number of names in a message


def check_unlisted_settings(
    runs: pd.DataFrame, columns: RunColumns, state: str | None
) -> list[str]:
    """Reject runs that differ in a setting outside --by and --tuned.

    If --by is a run-name column, such as W&B's ``Name``, a configuration stands for all of its
    settings. The result is then a note on the settings that differ between configurations; it is
    empty if there are none, and in all other cases. ``state`` is the column with the end state of
    each run, None without such a column.

    Raises:
        ConfigError: runs differ in such a setting; the error names it.
    """
    explained = explained_columns(runs, columns, state)
    others = [str(column) for column in runs if column not in explained]
    values_per_run = runs.groupby(columns.run, sort=False)[others].nunique(dropna=False)
    # a column that changes within a run is a measurement
    settings = [column for column in others if (values_per_run[column] == 1).all()]
    runs = runs[[*columns.run, *settings]].drop_duplicates()
    number_of_values = runs[settings].nunique(dropna=False)
    per_configuration = runs.groupby(columns.point, sort=False)[settings].nunique(dropna=False)
    per_seed = runs.groupby(columns.seed)[settings].nunique(dropna=False)
    if not runs.groupby(columns.point).size().gt(1).any():
        return []  # one run each: any column may be a setting or a measurement

    apart = []
    of_names = []
    by_name = any(column in RUN_NAMES for column in columns.by)
    for column in settings:
        if number_of_values[column] == 1 or _repeats_point(runs, column, columns):
            continue
        belongs_to_configuration = (per_configuration[column] == 1).all()
        names_each_run = number_of_values[column] == len(runs)
        belongs_to_seed = (per_seed[column] == 1).all()
        is_named_as_setting = column.startswith(SETTINGS_PREFIXES)
        varies_otherwise = is_named_as_setting and not names_each_run and not belongs_to_seed
        if belongs_to_configuration and by_name:
            of_names.append(column)
        elif belongs_to_configuration or varies_otherwise:
            apart.append(column)
    # list ids and paths last: they have the most values
    apart.sort(key=lambda column: number_of_values[column])
    of_names.sort(key=lambda column: number_of_values[column])
    if apart:
        raise ConfigError(
            f"runs differ in {listed(apart, _MAX_NAMED)}, which --by does not include",
            "--by",
            "add the settings that define a configuration to --by or --tuned, and ignore the "
            f"others: --ignore {_quoted_list(apart)}",
            code="runs-differ",
        )
    if not of_names:
        return []
    return [f"Configurations differ in {listed(of_names, _MAX_NAMED)}."]


def explained_columns(
    runs: pd.DataFrame, columns: RunColumns, state: str | None
) -> set[str | None]:
    """Return the columns that have a role, or that describe a run of W&B, with ``state`` even if it
    is None.
    """
    explained: set[str | None] = {*columns.every, columns.trial, STATE, state}
    if is_run_table(runs):
        explained.update(RUN_COLUMNS)
    return explained


def _repeats_point(runs: pd.DataFrame, column: str, columns: RunColumns) -> bool:
    """Return whether a column only repeats the configuration, such as ``out/dapo`` for ``dapo``:
    its values are equal once the name of the configuration is removed.
    """
    rest = set()
    for values in runs[[column, *columns.point]].drop_duplicates().itertuples(index=False):
        text = str(values[0])
        for value in values[1:]:
            text = text.replace(str(value).strip(), "{}")
        rest.add(text)
    return len(rest) == 1


def _quoted_list(names: Sequence[str]) -> str:
    """Quote names as one command-line argument."""
    written = []
    for name in names:
        written.append(f'"{name}"' if "," in name else name)
    text = ",".join(written)
    if any(mark in text for mark in ' "()[]&;|<>*?$'):
        return f"'{text}'"
    return text
