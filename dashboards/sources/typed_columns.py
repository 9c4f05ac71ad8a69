"""Convert the columns of a table of runs to numbers and strings."""

from typing import Any

import numpy as np
import pandas as pd

from dashboards.sources.numerals import NO_SCORE, are_versions
from dashboards.sources.run_columns import RunColumns
from loptune.errors import ConfigError, shortened
from loptune.terminal.table import counted

_MAX_CHARS = 80  # length limit of a value in a message
_TOO_LARGE = (1e100, np.finfo(float).max)  # finite, but too large to square


def typed(table: pd.DataFrame, columns: RunColumns) -> pd.DataFrame:
    """Convert columns that contain only numbers, and write seeds as strings.

    Raises:
        ConfigError: a row has no seed, a row with a score has no valid step, or a score is neither
            a number nor a mark of a failed run.
    """
    runs = table.copy()
    for column in columns.point:
        setting = runs[column]
        runs[column] = _numbers(setting.astype(object).where(setting.notna(), "none"))
    runs[columns.seed] = _seed_texts(runs[columns.seed])
    runs[columns.score] = _scores(runs, columns)
    if columns.step in runs:
        scored = runs[columns.score].notna()
        if columns.step != columns.axis:
            runs[columns.step] = _steps(runs[columns.step], scored, fractions=bool(columns.axis))
    return runs


def _seed_texts(seeds: "pd.Series[Any]") -> list[str]:
    """Return seeds as strings: ``7`` for the number 7.0.

    Raises:
        ConfigError: a row has no seed.
    """
    blank = int(seeds.isna().sum())
    if blank:
        raise ConfigError(
            f"{counted(blank, 'row')} without a seed",
            str(seeds.name),
            f"leave them out with --where '{seeds.name}!=none', or fill in their seeds",
            code="no-seed",
        )
    return [str(seed).strip().removesuffix(".0") for seed in seeds]


def _steps(
    column: "pd.Series[Any]", scored: "pd.Series[bool]", *, fractions: bool
) -> "pd.Series[float]":
    """Return steps as numbers; rows with a score must have a step, an integer unless fractions are
    allowed.

    Raises:
        ConfigError: a row with a score has no valid step.
    """
    steps = pd.to_numeric(column, errors="coerce")
    valid = steps.notna() if fractions else steps % 1 == 0
    if not valid[scored].all():
        raise ConfigError(
            "a row with a score has a step that is not an integer",
            str(column.name),
            f"choose the step column with --step, or interpolate with --axis {column.name}",
            code="step-not-integer",
        )
    return steps


def _scores(runs: pd.DataFrame, columns: RunColumns) -> "pd.Series[float]":
    """Return the scores as numbers; strings that mean a failed run become NaN.

    Raises:
        ConfigError: a score is any other string or a number too large to square, or there are no
            scores.
    """
    raw = runs[columns.score]
    scores = pd.to_numeric(raw, errors="coerce")
    failed = raw.astype(str).str.strip().str.lower().isin(NO_SCORE)
    wrong = raw[(scores.isna() & raw.notna() & ~failed) | scores.abs().between(*_TOO_LARGE)]
    if len(wrong):
        value = shortened(str(wrong.iloc[0]), _MAX_CHARS)
        hint = "write a number, or leave it blank for a failed run"
        if "," in value:
            hint = "write a decimal point, and no thousands separators"
        raise ConfigError(f"'{value}' is not a valid score", columns.score, hint, code="no-number")
    if scores.isna().all():
        raise ConfigError(
            "no row has a score",
            columns.score,
            "choose another column with --score",
            code="no-score",
        )
    return scores.astype(float)


def _numbers(values: "pd.Series[Any]") -> "pd.Series[Any]":
    numbers = pd.to_numeric(values, errors="coerce")
    texts = values.astype(str).str.strip()
    return numbers if numbers.notna().all() and not are_versions(texts.unique()) else texts


def kind_of_values(values: "pd.Series[Any]") -> str:
    """Return the kind of parameter that a column looks like: ``choice``, ``loguniform`` or
    ``uniform``.
    """
    if not pd.api.types.is_numeric_dtype(values) or values.dtype == bool:
        return "choice"
    if values.min() > 0 and values.max() >= 30 * values.min():
        return "loguniform"
    return "uniform"
