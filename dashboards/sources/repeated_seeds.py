"""Distinguish runs with the same configuration and seed, as random seeds may repeat."""

import pandas as pd

from dashboards.sources.run_columns import RunColumns
from dashboards.sources.settings import FILES
from dashboards.sources.states import COLUMNS
from dashboards.sources.wandb_tables import RUN_COLUMNS
from loptune.terminal.table import counted

# columns with run names
_NAMES = ("ID", "id", "run_id", "trial_id", "Name", "name", "run", "run_name", "Run", "trial")
_OF_RUNS = (*RUN_COLUMNS, *COLUMNS, "state of a row")
_SETTINGS = (
    "params.", "config.", "hparams.", "params_", *(f"{name.split('/')[-1]}:" for name in FILES)
)  # fmt: skip
# Largest fraction of repeated seeds in an arm for which seeds are considered random. If more
# repeat, the seeds were planned, and a run was started twice by mistake.
_REPEATED = 0.2


def with_seeds_apart(runs: pd.DataFrame, columns: RunColumns) -> tuple[pd.DataFrame, list[str]]:
    """Return the runs with unique seed labels, such as ``7 (2)`` for a run that repeats seed 7 of
    its configuration, and a note on them.

    Labels stay unchanged if the rows may belong to one run:
    there are no run names, they differ in a setting or have equal scores, or too many seeds repeat.
    With ``--unpaired``, only runs with equal scores keep their labels.
    """
    unpaired = columns.pairing == "unpaired"
    key = columns.run
    evaluation = [*key, columns.step] if columns.step in runs else key
    scored = runs[runs[columns.score].notna()]
    twice = scored[scored.duplicated(evaluation, keep=False)]
    if twice.empty:
        return runs, []
    name = _name_of_runs(runs, evaluation, columns)
    if name is None:
        if not unpaired or columns.step in runs:
            return runs, []
        number = runs.groupby(key, sort=False).cumcount()
    else:
        number = runs.groupby(key, sort=False)[name].transform(lambda names: names.factorize()[0])
    labels = runs[columns.seed].where(
        number == 0, runs[columns.seed] + " (" + (number + 1).astype(str) + ")"
    )
    if twice.duplicated([*evaluation, columns.score]).any():
        return runs, []
    labelled = runs.assign(**{columns.seed: labels})
    one_row_each = labelled.drop_duplicates(columns.run)
    repeats = (number > 0).loc[one_row_each.index]
    if not unpaired:
        of_arm = repeats.groupby([one_row_each[column] for column in columns.point]).mean()
        if (of_arm > _REPEATED).any() or _differ(twice, key, columns):
            return runs, []
    note = (
        f"{counted(int(repeats.sum()), 'run')} repeat a seed of their configuration and are "
        "treated as separate runs."
    )
    return labelled, [note]


def _name_of_runs(runs: pd.DataFrame, evaluation: list[str], columns: RunColumns) -> str | None:
    """Return the first name column that differs between all rows with the same evaluation."""
    scored = runs[runs[columns.score].notna()]
    for column in _NAMES:
        if column not in runs or column in columns.every or runs[column].isna().any():
            continue
        if not scored.duplicated([*evaluation, column]).any():
            return column
    return None


def _differ(twice: pd.DataFrame, key: list[str], columns: RunColumns) -> bool:
    """Return whether runs with the same seed differ in a setting: a string column or a parameter,
    except run names.
    """
    described = {*columns.every, *_NAMES, *_OF_RUNS}
    for column in map(str, twice):
        texts = not pd.api.types.is_numeric_dtype(twice[column])
        setting = column.startswith(_SETTINGS)
        if column in described or not (texts or setting):
            continue
        if (twice.groupby(key)[column].nunique(dropna=False) > 1).any():
            return True
    return False
