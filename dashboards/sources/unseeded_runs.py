"""Label the runs of a table without a column of seeds, so that each counts by itself."""

from dataclasses import replace

import pandas as pd

from dashboards.sources.run_columns import RunColumns
from dashboards.sources.wandb_tables import is_run_table
from loptune.errors import ConfigError

LABELS = "number of a run"  # the column that takes the place of seeds
# columns that name a run, the most telling first
_NAMES = ("ID", "run_id", "id", "trial_id", "Name", "name", "run_name", "run", "Run", "trial")
NOTE = "No --seed: every run counts by itself, and runs are compared without pairing."


def with_labels(
    table: pd.DataFrame, columns: RunColumns, steps: tuple[str, ...]
) -> tuple[pd.DataFrame, RunColumns]:
    """Return the table with a number for each run in the column `LABELS`, which takes the role of
    the seed.

    ``steps`` are names that columns of training steps have. A run is a row, or the rows with one
    name that have a step each. Without names, the rows of a configuration are one run if they have
    a step each.

    Raises:
        ConfigError: pairing is requested; or rows are evaluations of several runs without names.
    """
    if columns.pairing == "paired":
        raise ConfigError(
            "runs without seeds cannot be paired",
            "--paired",
            "name the column of seeds with --seed, or leave out --paired",
            code="nothing-to-pair",
        )
    present = [column for column in (columns.step, *steps) if column in table]
    free = [column for column in present if column not in (*columns.point, *columns.ignore)]
    chosen = replace(columns, seed=LABELS, pairing="unpaired")
    return table.assign(**{LABELS: _labels(table, columns, free)}), chosen


def _labels(table: pd.DataFrame, columns: RunColumns, steps: list[str]) -> "pd.Series[int]":
    rows = pd.Series(range(1, len(table) + 1), index=table.index)
    names = [name for name in _NAMES if name in table and table[name].notna().all()]
    if is_run_table(table) or any(table[name].is_unique for name in names):
        return rows
    for step in steps:
        for name in names:
            if not table.duplicated([name, step]).any():
                return table.groupby(name, sort=False).ngroup() + 1
        if not table.duplicated([*columns.point, step]).any():
            return table.groupby(columns.point, dropna=False).ngroup() + 1
    several = [step for step in steps if table[step].nunique() > 1]
    if several:
        raise ConfigError(
            f"rows with several values of {several[0]} cannot be assigned to runs",
            columns.source,
            "name the column that identifies runs with --seed; if each row is a run, add "
            f"--ignore {several[0]}",
            code="runs-not-told-apart",
        )
    return rows
