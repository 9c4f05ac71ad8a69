"""Convert tables of other shapes into one row per run: tables with a column per configuration or
per seed, transposed tables, and cells with several scores.
"""

import json
import re
from typing import Any

import pandas as pd

from dashboards.sources.column_words import words_of
from dashboards.sources.roles import is_of_run, is_summary, step_columns
from dashboards.sources.run_columns import RunColumns
from loptune.errors import ConfigError, listed, shortened

# names of columns that contain one seed each: 0, seed 1, s0, run1
_OF_SEED = re.compile(r"(?:seed|s|run|r|trial|rep|repeat|replicate)?[\s_=-]*(\d+)", re.I)
_WITH_SPREAD = re.compile(
    r"[-+]?[\d.,]+\s*(?:±|\+/-|\+-|\\pm)\s*[\d.,]+.*|[-+]?[\d.]+\s*\([\d.]+\)"
)
_MAX_CHARS = 80
_MAX_NAMED = 6


def one_row_per_run(table: pd.DataFrame, columns: RunColumns) -> tuple[pd.DataFrame, list[str]]:
    """Return the table with one row per run, and a note if that changed it.

    Without a score column, three shapes are recognized: a column per configuration, the
    baseline included; a column per seed, such as ``seed 1`` or ``s1``, next to the setting columns;
    and a transposed table.

    Raises:
        ConfigError: the scores are means with deviations, not single runs.
    """
    table = table.rename(columns=lambda name: str(name).strip())
    notes: list[str] = []
    if columns.score not in table and len(columns.by) == 1 and not columns.tuned:
        if _is_transposed(table, columns.score):
            table = _transposed(table, columns)
        table, notes = _melted(table, columns)
    if columns.score in table:
        table, of_lists = _one_score_a_cell(table, columns.score)
        notes += of_lists
    return table, notes


def _is_transposed(table: pd.DataFrame, score: str) -> bool:
    """Return whether the first column contains column names, the score's among them."""
    if len(table.columns) < 2 or table.empty:
        return False
    names = table.iloc[:, 0].astype(str).str.strip()
    return score in set(names) and not names.duplicated().any()


def _transposed(table: pd.DataFrame, columns: RunColumns) -> pd.DataFrame:
    """Transpose a table. Its header contains the configuration names, unless a row does; then it
    contains the values of the column that its first name names, unless a row does.
    """
    (by,) = columns.by
    header = [str(name) for name in table.columns]
    upright = table.set_index(header[0]).T.rename_axis(index=None, columns=None)
    upright.columns = [str(name).strip() for name in upright]
    in_header = header[0] if by in upright else by
    if in_header not in upright:
        upright.insert(0, in_header, header[1:])
    return upright.reset_index(drop=True).infer_objects()


def _melted(table: pd.DataFrame, columns: RunColumns) -> tuple[pd.DataFrame, list[str]]:
    """Return a table with a column per configuration or per seed as one row per run."""
    if columns.score in table:
        return table, []
    (by,) = columns.by
    available = list(map(str, table))
    seed = columns.seed or next((name for name in available if words_of(name) == ["seed"]), "seed")
    if by not in available:
        return _column_per_configuration(table, columns, seed)
    if seed in available:
        return table, []
    seeds = {name: match[1] for name in available if (match := _OF_SEED.fullmatch(name))}
    seeds.pop(by, None)
    if len(seeds) < 2 or len(set(seeds.values())) < len(seeds):
        return table, []
    kept = [name for name in available if name not in seeds and not is_summary(name)]
    melted = table.melt(
        id_vars=kept, value_vars=list(seeds), var_name=seed, value_name=columns.score
    )
    melted[seed] = melted[seed].map(seeds)
    return melted, [f"Every column of {listed(list(seeds), _MAX_NAMED)} is a seed."]


def _column_per_configuration(
    table: pd.DataFrame, columns: RunColumns, seed: str
) -> tuple[pd.DataFrame, list[str]]:
    """Return one row per run of a table with a column per configuration, if one of them is the
    baseline. Without seeds and steps, blanks below a configuration's last score are not runs: the
    configuration has fewer runs than others. A blank above it is a failed run.
    """
    (by,) = columns.by
    baseline = str(columns.baseline.get(by))
    available = list(map(str, table))
    if baseline not in available:
        return table, []
    steps = [name for name in step_columns(table, columns) if name != baseline]
    kept = [name for name in (seed, *steps, *columns.task) if name in available]
    arms = []
    for name in available:
        is_arm = name == baseline or not _is_no_arm(name, table[name])
        if is_arm and name not in (*kept, *columns.ignore):
            arms.append(name)
    parts = []
    for arm in arms:
        rows = table[[*kept, arm]].rename(columns={arm: columns.score}).assign(**{by: arm})
        if seed not in kept and not steps:
            rows = rows.loc[: rows[columns.score].last_valid_index()]
        parts.append(rows)
    note = f"Every column of {listed(arms, _MAX_NAMED)} is a configuration."
    return pd.concat(parts, ignore_index=True), [note]


def _is_no_arm(name: str, cells: pd.Series) -> bool:
    """Return whether a column is not a configuration: it numbers, describes or summarizes the rows,
    or has no scores.
    """
    if is_summary(name) or is_of_run(name) or name.startswith("Unnamed:"):
        return True
    scores = pd.to_numeric(cells.map(lambda cell: 0 if isinstance(cell, list) else cell), "coerce")
    return bool(scores.isna().all())


def _one_score_a_cell(table: pd.DataFrame, score: str) -> tuple[pd.DataFrame, list[str]]:
    """Return one row per score for cells that contain lists of scores; reject means with
    deviations.

    Raises:
        ConfigError: a cell is a mean with a deviation.
    """
    cells = table[score]
    if pd.api.types.is_numeric_dtype(cells):
        return table, []
    texts = cells.dropna().astype(str).str.strip()
    spread = texts[texts.map(lambda text: bool(_WITH_SPREAD.fullmatch(text)))]
    if len(spread):
        raise ConfigError(
            f"'{shortened(spread.iloc[0], _MAX_CHARS)}' is a mean with a deviation, not the "
            "scores of single runs",
            score,
            "save one row per run with its own score",
            code="summary-scores",
        )
    lists = cells.map(_as_list)
    if lists.map(lambda values: isinstance(values, list)).sum() == 0:
        return table, []
    table = table.assign(**{score: lists}).explode(score, ignore_index=True)
    return table, [f"The column {score} contains lists; each value is treated as one run."]


def _as_list(cell: Any) -> Any:
    """Return the list of numbers in a cell, or the cell unchanged."""
    if isinstance(cell, str) and cell.strip().startswith("["):
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    if not isinstance(cell, list | tuple):
        return cell
    has_only_numbers = all(isinstance(value, int | float) for value in cell)
    return list(cell) if has_only_numbers else cell


def without_lists(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with lists and mappings as strings, which can be compared and grouped."""
    texts = {}
    for column in table.select_dtypes("object"):
        values = table[column]
        nested = values.map(lambda value: isinstance(value, list | dict | tuple | set))
        if nested.any():
            texts[column] = values.mask(nested, values.astype(str))
    return table.assign(**{str(name): values for name, values in texts.items()})
