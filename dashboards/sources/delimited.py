"""Read text tables: CSV, TSV and files of SB3, Spinning Up, Ultralytics and TensorBoard."""

import csv
import io
import re
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.sources.content import read_text
from dashboards.sources.numerals import are_versions, with_numbers
from loptune.errors import ConfigError
from loptune.row_files import first_repeated

_SEPARATORS = ",;\t|"
NOTES = "notes"  # key in a table's attrs for notes on how the table was read
_MOST_VERSIONS = 100  # a column with more distinct values is assumed not to contain versions
_PERCENT = re.compile(r"\s*[-+]?(?:\d+(?:\.\d*)?|\.\d+)\s*%\s*")
_MONITOR = {"r", "l", "t"}  # SB3's monitor.csv: return, length and time of an episode
_TENSORBOARD = {"Wall time", "Step", "Value"}


def read_delimited(path: Path) -> pd.DataFrame:
    """Return the rows of a CSV or TSV file. The separator is detected in the header line.

    Lines before the header that start with ``#`` are skipped. Spaces around column names are
    removed, as are an unnamed column of row numbers and the percent signs of a column of
    percentages. SB3's monitor.csv gets a column ``step``: the number of steps up to the end of each
    episode.

    Raises:
        ConfigError: a column name is repeated, a row has too many values, or a comma in the numbers
            may be a decimal comma or a thousands separator.
        StorageError: see `read_text`.
    """
    text = _without_comments(read_text(path))
    first = text.partition("\n")[0]
    separator = _separator(first)
    if separator is None and path.suffix.lower() not in (".csv", ".tsv", ".gz"):
        separator = r"\s+"
        _check_rows(text, " ", path)
    else:
        separator = separator or ","
        _check_rows(text, separator, path)
    with warnings.catch_warnings():
        # pandas would only warn, and drop values
        warnings.simplefilter("error", pd.errors.ParserWarning)
        table = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            skipinitialspace=True,
            index_col=False,
            low_memory=False,
        )
    names = _few_decimals(table)
    if names:
        cells = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            skipinitialspace=True,
            index_col=False,
            usecols=names,
            dtype=str,
        )
        versions = [name for name in names if are_versions(cells[name].dropna().unique())]
        table = _replaced(table, {name: cells[name] for name in versions})
    table.columns = [str(name).strip() for name in table]
    nameless = [name for name in table if str(name).startswith("Unnamed: ")]
    table = table.drop(columns=nameless)
    converted: dict[Any, pd.Series[float]] = {}
    for name in table.select_dtypes(["object", "string"]) if "%" in text else ():
        numbers = _percentages(table[name])
        if numbers is not None:
            converted[name] = numbers
    table = _replaced(table, converted)
    table, notes = with_numbers(table, str(path))
    if set(table.columns) >= _MONITOR:
        table["step"] = table["l"].cumsum()
    if set(table.columns) >= _TENSORBOARD:
        table = table.drop(columns="Wall time")
    table.attrs[NOTES] = notes
    return table


def _replaced(table: pd.DataFrame, columns: dict[Any, "pd.Series[Any]"]) -> pd.DataFrame:
    """Return the table with some columns replaced, all at once: replacing one by one takes
    quadratic time.
    """
    if not columns:
        return table
    parts = [table.drop(columns=list(columns)), pd.DataFrame(columns)]
    return pd.concat(parts, axis="columns")[list(table)]


def _few_decimals(table: pd.DataFrame) -> list[str]:
    """Return columns with few distinct decimal numbers, which may be versions such as 1.10."""
    columns = []
    for column in table.select_dtypes("float"):
        if table[column].nunique() <= _MOST_VERSIONS:
            columns.append(str(column))
    return columns


def _without_comments(text: str) -> str:
    """Return the text without the comment lines before its header. The last comment line is the
    header if the next line has the same number of values, as in files written by NumPy.
    """
    comment = ""
    while text.startswith("#"):
        comment, _, text = text.partition("\n")
    header = comment.lstrip("# ")
    separator = _separator(header)
    names = header.split(separator)
    values = text.partition("\n")[0].split(separator)
    if len(names) == len(values) > 1 and all(_is_number(value) for value in values):
        return f"{header}\n{text}"
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _separator(header: str) -> str | None:
    """Return the most frequent separator outside quotes, or None if there is none."""
    bare = re.sub(r'"[^"]*"', "", header)
    best = max(_SEPARATORS, key=bare.count)
    return best if best in bare else None


def _check_rows(text: str, separator: str, path: Path) -> None:
    """Reject tables whose values pandas would shift, or whose columns it would rename, without an
    error.

    Raises:
        ConfigError: a column name is repeated, or a row has too many values.
    """
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True
    )
    names = [name.strip() for name in next(reader, [])]
    repeated = first_repeated([name for name in names if name])
    if repeated is not None:
        raise ConfigError(
            f"duplicate column {repeated}",
            f"{path}, line 1",
            "rename or remove one",
            code="duplicate-column",
        )
    for row in reader:
        surplus = row[len(names) :]
        if any(value.strip() for value in surplus):
            raise ConfigError(
                "more values than columns",
                f"{path}, line {reader.line_num}",
                f"quote values that contain {separator!r}",
                code="more-values-than-columns",
            )


def _percentages(values: "pd.Series[str]") -> "pd.Series[float] | None":
    """Return the column as numbers in percent if every value has a percent sign, else None."""
    texts = values.dropna().astype(str)
    if texts.empty or not texts.map(lambda text: bool(_PERCENT.fullmatch(text))).all():
        return None
    return pd.to_numeric(values.str.replace("%", "").str.strip())
