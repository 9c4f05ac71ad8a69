"""Distinguish runs with the same configuration and seed, because random seeds may repeat."""

import pandas as pd

from dashboards.sources.run_columns import RunColumns
from dashboards.sources.settings import SETTINGS_PREFIXES
from dashboards.sources.states import COLUMNS, STATE
from dashboards.sources.wandb_tables import RUN_COLUMNS
from loptune.terminal.table import counted

# columns with run names
_NAMES = ("ID", "id", "run_id", "trial_id", "Name", "name", "run", "run_name", "Run", "trial")
_OF_RUNS = (*RUN_COLUMNS, *COLUMNS, STATE)
# Largest fraction of repeated seeds in an arm for which seeds are considered random. If more
# repeat, the seeds were planned, and a run was started twice by mistake.
_REPEATED = 0.2


def with_seeds_apart(runs: pd.DataFrame, columns: RunColumns) -> tuple[pd.DataFrame, list[str]]:
    """Return the runs with unique seed labels, such as ``7 (2)`` for a run that repeats seed 7 of
    its configuration, and a note on them.

    Seeds keep their labels if it is unclear which rows belong to one run, or if a repeated seed
    looks like a mistake: the scores are equal (one run, recorded twice), the runs differ in a
    setting, or many seeds are repeated. With ``--unpaired``, seeds only label runs, so only equal
    scores are treated as a mistake.
    """
    evaluation = _columns_of_evaluation(runs, columns)
    scored = runs[runs[columns.score].notna()]
    repeated = scored[scored.duplicated(evaluation, keep=False)]
    recorded_twice = repeated.duplicated([*evaluation, columns.score]).any()
    if repeated.empty or recorded_twice:
        return runs, []

    number = _numbers_within_seed(runs, columns)
    if number is None:
        return runs, []
    seed = runs[columns.seed]
    label_of_repeat = seed + " (" + (number + 1).astype(str) + ")"
    labelled = runs.assign(**{columns.seed: seed.where(number == 0, label_of_repeat)})

    one_row_per_run = labelled.drop_duplicates(columns.run)
    is_repeat = (number > 0).loc[one_row_per_run.index]
    if columns.pairing != "unpaired":
        arms = [one_row_per_run[column] for column in columns.point]
        fraction_of_arm = is_repeat.groupby(arms).mean()
        if (fraction_of_arm > _REPEATED).any() or _differ(repeated, columns):
            return runs, []
    note = (
        f"{counted(int(is_repeat.sum()), 'run')} repeat a seed of their configuration and are "
        "treated as separate runs."
    )
    return labelled, [note]


def _columns_of_evaluation(runs: pd.DataFrame, columns: RunColumns) -> list[str]:
    """Return the columns that identify an evaluation of a run."""
    return [*columns.run, columns.step] if columns.step in runs else columns.run


def _numbers_within_seed(runs: pd.DataFrame, columns: RunColumns) -> "pd.Series[int] | None":
    """Number the runs with the same configuration and seed from 0, row by row. None if the rows do
    not show to which run they belong.
    """
    same_seed = runs.groupby(columns.run, sort=False)
    name = _name_of_runs(runs, columns)
    if name is not None:
        numbers: pd.Series[int] = same_seed[name].transform(lambda names: names.factorize()[0])
        return numbers
    has_one_row_per_run = columns.step not in runs
    if columns.pairing == "unpaired" and has_one_row_per_run:
        return same_seed.cumcount()
    return None


def _name_of_runs(runs: pd.DataFrame, columns: RunColumns) -> str | None:
    """Return the first name column that differs between all rows with the same evaluation, or
    None.
    """
    evaluation = _columns_of_evaluation(runs, columns)
    scored = runs[runs[columns.score].notna()]
    for column in _NAMES:
        if column not in runs or column in columns.every or runs[column].isna().any():
            continue
        if not scored.duplicated([*evaluation, column]).any():
            return column
    return None


def _differ(repeated: pd.DataFrame, columns: RunColumns) -> bool:
    """Return whether runs with the same seed differ in a setting: a string column or a parameter,
    except run names.
    """
    no_settings = {*columns.every, *_NAMES, *_OF_RUNS}
    for column in map(str, repeated):
        is_text = not pd.api.types.is_numeric_dtype(repeated[column])
        is_setting = is_text or column.startswith(SETTINGS_PREFIXES)
        if column in no_settings or not is_setting:
            continue
        values_per_seed = repeated.groupby(columns.run)[column].nunique(dropna=False)
        if (values_per_seed > 1).any():
            return True
    return False
