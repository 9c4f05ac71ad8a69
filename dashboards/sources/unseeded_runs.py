"""Label the runs of a table without a seed column, so that each counts by itself."""

from dataclasses import replace

import pandas as pd

from dashboards.sources.roles import check_repeats, named_runs
from dashboards.sources.run_columns import RunColumns
from loptune.errors import ConfigError

LABELS = "number of a run"  # the column that takes the place of seeds
NOTE = "No seed column: runs are treated as independent (unpaired comparison)."


def with_labels(table: pd.DataFrame, columns: RunColumns) -> tuple[pd.DataFrame, RunColumns]:
    """Return the table with a number for each run in the column `LABELS`, which takes the role of
    the seed.

    Raises:
        ConfigError: pairing is requested; or rows are evaluations of several runs without names.
    """
    if columns.pairing == "paired":
        raise ConfigError(
            "runs without seeds cannot be paired",
            "--paired",
            "name the seed column with --seed, or leave out --paired",
            code="nothing-to-pair",
        )
    check_repeats(table, columns)
    numbers = named_runs(table, columns)
    chosen = replace(columns, seed=LABELS, pairing="unpaired")
    return table.assign(**{LABELS: numbers}), chosen
