"""Match column names given by the user, and split run names into columns."""

import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.sources.conditions import Condition
from dashboards.sources.roles import quoted
from dashboards.sources.run_columns import RunColumns
from loptune.errors import ConfigError
from loptune.terminal.table import counted
from loptune.yaml_document import nearest

# columns with run names, which may contain the configuration
RUN_NAMES = ("run", "Name", "name", "run_name", "Run", "trial", "exp_name", "experiment", "Group")
_NO_FILTER = ",none"  # suffix of lm-eval's metrics without a filter
# names of files that a program writes once per run
_OF_ONE_RUN = (
    "trainer_state.json", "*tfevents*", "progress.*", "*monitor.csv", "result.json", "metrics.*",
    "all_results.json",
)  # fmt: skip
_PREFIXES = ("params.", "config.", "hparams.", "tags.", "summary.", "params_", "user_attrs_")


def find_column(name: str, table: pd.DataFrame, *, anywhere: bool = False) -> str | None:
    """Return the column that a name refers to: the column itself, or the only column with this name
    among those from settings files and run parameters. With ``anywhere`` also the only column whose
    dotted name ends with it, such as ``config.yaml:optim.lr`` for ``lr``, or with it and ``.name``.
    None if there is none. Columns with equal values are treated as one.

    Raises:
        ConfigError: several columns match.
    """
    names = [str(column) for column in table]
    if name in names:
        return name
    if name.removesuffix(_NO_FILTER) in names:  # the name of the metric in lm-eval's files
        return name.removesuffix(_NO_FILTER)
    spaced = [column for column in names if column.strip() == name]
    if len(spaced) == 1:
        return spaced[0]
    plain = {column for column in names if column.split(":", 1)[-1] == name and ":" in column}
    plain |= {f"{prefix}{name}" for prefix in _PREFIXES} & set(names)
    if not plain and anywhere:
        ends = (f".{name}", f"/{name}", f":{name}.name", f".{name}.name")
        plain = {column for column in names if column.endswith(ends)}
    texts = [table[column].astype(str) for column in sorted(plain)]
    if any(not text.equals(texts[0]) for text in texts):
        listed = ", ".join(sorted(plain)[:8])
        raise ConfigError(
            f"several columns are called {name}: {listed}",
            "command line",
            "write the full name of the column",
            code="ambiguous-column",
        )
    return min(plain, default=None)


def with_columns(columns: RunColumns, table: pd.DataFrame) -> tuple[RunColumns, list[str]]:
    """Return ``columns`` with the table's full column names, and notes on abbreviated names.

    Raises:
        ConfigError: a column is missing or ambiguous.
    """
    meant: dict[str, str] = {}

    def found(name: str, *, anywhere: bool = True, optional: bool = False) -> str:
        column = find_column(name, table, anywhere=anywhere)
        if column is None and not optional:
            raise ConfigError(
                f"no column {name}",
                columns.source,
                _where_to_find(name, table, columns.source),
                code="unknown-column",
            )
        if column is None:
            return name
        if column != name:
            meant[name] = column
        return column

    by = [found(name) for name in columns.by]
    baseline = {}
    for name, value in columns.baseline.items():
        column = find_column(name, table[by], anywhere=True)
        column = column or find_column(name, table, anywhere=True)
        baseline[column or name] = value
    failed = []
    for condition in columns.failed:
        failed.append(Condition(found(condition.column), condition.operator, condition.value))
    resolved = replace(
        columns,
        by=by,
        baseline=baseline,
        score=found(columns.score, anywhere=False),
        seed=found(columns.seed) if columns.seed else "",
        task=[found(name) for name in columns.task],
        tuned=[found(name) for name in columns.tuned],
        ignore=[found(name) for name in columns.ignore],
        step=found(columns.step, optional=columns.step == "step"),
        axis=found(columns.axis) if columns.axis else "",
        trial=found(columns.trial, optional=columns.trial == "trial"),
        failed=failed,
    )
    return resolved, [f"{name} is the column {column}." for name, column in meant.items()]


def _where_to_find(name: str, table: pd.DataFrame, source: str) -> str:
    """Return a hint. It shows the column that contains the name as a value (as in a table with a
    row per metric), the closest column name, or how to turn a part of the path or run name into a
    column.
    """
    available = [str(column) for column in table]
    hint = nearest(name, available)
    for column in table.select_dtypes(["object", "string"]):
        if (table[column] == name).any():
            rows = quoted(f"{column}={name}")
            return (
                f"{name} is a value of the column {column}: choose its rows with --where {rows}, "
                f"and pass the column that contains their numbers; {hint}"
            )
    if not hint.startswith("valid") or not name.isidentifier():
        return hint
    place = Path(source)
    if any(fnmatchcase(place.name, pattern) for pattern in _OF_ONE_RUN) and place.is_file():
        pattern = f"'{{{name}}}-s{{seed}}/{place.name}'"
        return (
            f"{place.name} contains a single run: pass a pattern that matches the files of "
            f"all runs, such as {pattern}; {hint}"
        )
    hint += f"; {{{name}}} in a file pattern turns that part of the path into a column"
    if set(RUN_NAMES) & set(available):
        hint += f", --names '{{...}}-{{{name}}}' does the same for run names"
    return hint


def split_names(table: pd.DataFrame, pattern: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of runs whose names match a pattern such as ``{algo}-s{seed}``, with its
    parts as columns, and a note on runs that were left out.

    Raises:
        ConfigError: a part occurs twice in the pattern, the table has no name column, no name
            matches, or the names of several columns match.
    """
    pieces = re.split(r"(\{[A-Za-z_]\w*\})", pattern)
    expression = ""
    for piece in pieces:
        part = re.fullmatch(r"\{([A-Za-z_]\w*)\}", piece)
        if part is None:
            expression += re.escape(piece)
        elif f"(?P<{part[1]}>" in expression:
            raise ConfigError(
                f"{piece} occurs twice in the pattern",
                "--names",
                "use a different name for each {part}",
                code="repeated-part",
            )
        else:
            expression += f"(?P<{part[1]}>.+)"
    column = _matching_column(table, expression)
    if column is None:
        raise ConfigError(
            f"no name matches {pattern}; an example of a name is {_example(table)}",
            "--names",
            "write a pattern such as {algo}-s{seed}",
            code="no-name-matches",
        )
    parts = table[column].astype(str).str.extract(f"^{expression}$")
    matched = parts.notna().any(axis="columns")
    left_out = table.loc[~matched, column].nunique()
    notes = []
    if column not in RUN_NAMES:
        notes.append(f"--names splits the column {column}.")
    if left_out:
        runs = counted(left_out, "run")
        notes.append(f"Left out: {runs} with names that do not match {pattern}.")
    clash = [name for name in parts if name in table]
    rows = table.drop(columns=clash).assign(**{str(name): parts[name] for name in parts})
    return rows[matched], notes


def _matching_column(table: pd.DataFrame, expression: str) -> str | None:
    """Return the column that `split_names` splits: a usual run-name column if any of its values
    matches, or else the only string column whose values all match; None if there is none.

    Raises:
        ConfigError: several string columns match.
    """
    for column in RUN_NAMES:
        if column in table and _matches(table[column], expression).any():
            return column
    matching = []
    for column in _text_columns(table):
        if len(table) and _matches(table[column], expression).all():
            matching.append(column)
    if len(matching) > 1:
        raise ConfigError(
            f"the names in {', '.join(map(str, matching))} all match",
            "--names",
            "make the pattern more specific, so that only one column matches",
            code="ambiguous-column",
        )
    return matching[0] if matching else None


def _matches(names: "pd.Series[Any]", expression: str) -> "pd.Series[bool]":
    return names.astype(str).str.fullmatch(expression)


def _text_columns(table: pd.DataFrame) -> list[str]:
    columns: list[str] = table.select_dtypes(["object", "string"]).columns.tolist()
    return columns


def _example(table: pd.DataFrame) -> str:
    """Return a value of the column that most likely contains the run names.

    Raises:
        ConfigError: no column contains text.
    """
    usual = [name for name in RUN_NAMES if name in table]
    columns = [*usual, *_text_columns(table)]
    if table.empty or not columns:
        raise ConfigError(
            "no column contains run names",
            "--names",
            "put the names into the file pattern instead, as in 'runs/{algo}-s{seed}/metrics.csv'",
            code="no-names",
        )
    return str(table[columns[0]].iloc[0])[:80]
