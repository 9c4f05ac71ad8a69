"""Turn tables with a column per configuration or per seed into one row per run."""

import pandas as pd

from dashboards.sources.question import Question


def one_row_per_run(table: pd.DataFrame, question: Question) -> pd.DataFrame:
    """Return the table with one row per run.

    Two shapes are recognized, if the table has no column of the score: a column of seeds beside a
    column per configuration, one of which is the baseline; and a column of configurations beside a
    column per seed, named by whole numbers.
    """
    if question.score in table or len(question.by) != 1 or question.tuned:
        return table
    (by,) = question.by
    columns = {str(column).strip(): column for column in table}
    if question.seed in columns and by not in columns:
        if str(question.baseline.get(by)) not in columns:
            return table
        others = [name for name in columns if name not in (question.seed, *question.ignore)]
        return table.rename(columns=str).melt(
            id_vars=[question.seed], value_vars=others, var_name=by, value_name=question.score
        )
    if by in columns and question.seed not in columns:
        seeds = [name for name in columns if name.removeprefix("seed").strip("_ -").isdigit()]
        if len(seeds) < 2:
            return table
        return table.rename(columns=str).melt(
            id_vars=[by], value_vars=seeds, var_name=question.seed, value_name=question.score
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
