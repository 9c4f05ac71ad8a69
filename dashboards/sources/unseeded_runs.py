"""Number the runs of a table without a seed column, so that they are treated as independent."""

from dataclasses import replace

import pandas as pd

from dashboards.sources.roles import check_repeats, is_named, is_numbered, named_runs
from dashboards.sources.row_order import check_order
from dashboards.sources.run_columns import RunColumns
from loptune.errors import ConfigError

LABELS = "number of a run"  # column that replaces the seed column
NOTE = "No seed column: runs are treated as independent (unpaired comparison)."


def with_labels(table: pd.DataFrame, columns: RunColumns) -> tuple[pd.DataFrame, RunColumns]:
    """Return the table with run numbers in the column `LABELS`, which is used as the seed column.

    Raises:
        ConfigError: pairing is requested, rows are repeated, or rows are evaluations that cannot be
            assigned to runs.
    """
    if columns.pairing == "paired":
        raise ConfigError(
            "runs without seeds cannot be paired",
            "--paired",
            "pass the seed column with --seed, or leave out --paired",
            code="nothing-to-pair",
        )
    check_repeats(table, columns)
    numbers = named_runs(table, columns)
    chosen = replace(columns, seed=LABELS, pairing="unpaired")
    return table.assign(**{LABELS: numbers}), chosen


def check_independence(runs: pd.DataFrame, columns: RunColumns) -> None:
    """Reject rows that are treated as separate runs, but look like the evaluations of one run.

    Args:
        runs: the rows, with their run numbers.
        columns: the roles of columns, with `LABELS` as the seed column.

    Raises:
        ConfigError: no column distinguishes the rows, and their scores are not in a random order.
    """
    given = runs.drop(columns=LABELS)
    told_apart = is_named(given) or is_numbered(given, columns)
    if runs[LABELS].is_unique and not told_apart:
        check_order(runs, columns)
