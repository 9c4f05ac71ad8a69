"""Read exports of Weights & Biases: a table of runs, a chart's lines, and local run folders."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

_SUMMARY = "files/wandb-summary.json"
_LINE = re.compile(r"(?P<name>.+) - (?P<metric>.+?)(?P<band>__(?:MIN|MAX|STD|STDERR))?")
_NOT_FINITE = re.compile(r"(?<=[:,\[(] )-?(?:nan|inf)(?=[,}\])])")
_MAX_CELL_CHARS = 1 << 20
_MAX_NAME_CHARS = 1_000  # length limit of a column name in a chart
# columns of the table of runs that describe a run and are not settings
RUN_COLUMNS = (
    "Name", "ID", "State", "Notes", "User", "Tags", "Created", "Runtime", "Sweep", "Group",
    "Job Type", "Description", "Updated", "End Time", "Hostname", "Commit", "GPU Type", "GPU Count",
    "Path", "Entity", "Project", "_runtime", "_timestamp", "_wandb.runtime",
)  # fmt: skip

_OF_EXPORTS = {"State", "Created", "Runtime", "ID", "User", "Notes", "Tags", "Sweep", "End Time"}
_FEWEST_OF_EXPORT = 2


def is_run_table(table: pd.DataFrame) -> bool:
    """Return whether a table is W&B's export of a project's runs."""
    return "Name" in table and len(_OF_EXPORTS & set(table.columns)) >= _FEWEST_OF_EXPORT


def expand(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with a chart's lines as rows, and mappings expanded into columns."""
    return expand_mappings(_melt_chart(table))


def run_summaries(folder: Path) -> list[Path]:
    """Return the summary files of a local ``wandb`` folder or of a run's folder in it."""
    if (folder / _SUMMARY).is_file():
        return [folder / _SUMMARY]
    runs = [*folder.glob(f"run-*/{_SUMMARY}"), *folder.glob(f"offline-run-*/{_SUMMARY}")]
    return sorted(runs)


def _melt_chart(table: pd.DataFrame) -> pd.DataFrame:
    """Return a chart's table, which has a column ``NAME - metric`` for each run, as rows with the
    columns Name, step (its horizontal axis, which keeps its own name too) and metric. The columns
    of its bands, such as ``__MIN``, are left out. Any other table is returned unchanged.
    """
    lines = {}
    for column in table:
        is_short = len(str(column)) <= _MAX_NAME_CHARS  # the pattern takes quadratic time
        lines[column] = _LINE.fullmatch(str(column)) if is_short else None
    others = [column for column, line in lines.items() if line is None]
    found = {column: line for column, line in lines.items() if line is not None}
    banded = any(line["band"] for line in found.values())
    if not found or len(others) != 1 or not (banded or len(found) > 1):
        return table
    step = others[0]
    parts = []
    for column, line in found.items():
        if line["band"] or line["metric"].startswith("_") or line["metric"] == step:
            continue
        values = pd.DataFrame({"Name": line["name"], "step": table[step], "value": table[column]})
        values = values.dropna(subset="value").assign(metric=line["metric"])
        parts.append(values)
    rows = pd.concat(parts, ignore_index=True)
    wide = rows.pivot_table(index=["Name", "step"], columns="metric", values="value", sort=False)
    wide = wide.reset_index().rename_axis(columns=None)
    if str(step).lower() in ("step", "name"):
        return wide
    return wide.assign(**{str(step): wide["step"]})


def expand_mappings(table: pd.DataFrame) -> pd.DataFrame:
    """Replace columns whose cells are mappings, or strings of mappings, by one column per key."""
    for column in list(table.select_dtypes(["object", "string"])):
        mappings = [_as_mapping(cell) for cell in table[column]]
        if table.empty or not all(mapping is not None for mapping in mappings):
            continue
        if not any(mappings):
            continue
        flat = pd.json_normalize([mapping or {} for mapping in mappings])
        flat = flat.set_axis([f"{column}.{key}" for key in flat], axis="columns")
        internal = [key for key in flat if str(key).startswith(f"{column}._wandb")]
        flat = flat.drop(columns=internal).set_axis(table.index)
        table = pd.concat([table.drop(columns=column), flat], axis="columns")
    return table


def _as_mapping(cell: Any) -> dict[str, Any] | None:
    """Return a cell's mapping, {} for a blank cell, None for anything else."""
    if isinstance(cell, dict):
        return cell
    if not isinstance(cell, str):
        return {} if pd.api.types.is_scalar(cell) and pd.isna(cell) else None
    text = cell.strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) > _MAX_CELL_CHARS:
        return None
    try:
        mapping = json.loads(text)
    except (ValueError, RecursionError):
        try:
            mapping = ast.literal_eval(_NOT_FINITE.sub("None", text))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    return mapping if isinstance(mapping, dict) else None
