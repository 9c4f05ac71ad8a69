"""Turn tables with a column per configuration or per seed into one row per run."""

import pandas as pd

from dashboards.sources.run_columns import RunColumns


def one_row_per_run(table: pd.DataFrame, columns: RunColumns) -> pd.DataFrame:
    """Return the table with one row per run.

    If the table has no column of the score, two shapes are recognized. One has a column of seeds
    and a column per configuration, the baseline included. The other has a column of configurations
    and a column per seed, named by integers.
    """
    if columns.score in table or len(columns.by) != 1 or columns.tuned:
        return table
    (by,) = columns.by
    seed = columns.seed or "seed"
    available = [str(column).strip() for column in table]
    if seed in available and by not in available:
        if str(columns.baseline.get(by)) not in available:
            return table
        others = [name for name in available if name not in (seed, *columns.ignore)]
        return table.rename(columns=str).melt(
            id_vars=[seed], value_vars=others, var_name=by, value_name=columns.score
        )
    if by in available and seed not in available:
        seeds = [name for name in available if name.removeprefix("seed").strip("_ -").isdigit()]
        if len(seeds) < 2:
            return table
        return table.rename(columns=str).melt(
            id_vars=[by], value_vars=seeds, var_name=seed, value_name=columns.score
        )
    return table


def without_lists(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with lists and mappings as texts, which can be compared and grouped."""
    texts = {}
    for column in table.select_dtypes("object"):
        values = table[column]
        nested = values.map(lambda value: isinstance(value, list | dict | tuple | set))
        if nested.any():
            texts[column] = values.mask(nested, values.astype(str))
    return table.assign(**{str(name): values for name, values in texts.items()})
