"""Parse numbers with decimal commas or thousands separators."""

import re
from collections.abc import Iterable

import pandas as pd

from loptune.errors import ConfigError

_GROUPED = {  # thousands separator -> pattern of numbers written with it
    ",": re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"),
    ".": re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?"),
    " ": re.compile(r"[-+]?[1-9]\d{0,2}([ '\u00a0\u202f\u2019]\d{3})+([.,]\d+)?"),
}
_WITH_COMMA = re.compile(r"[-+]?\d[\d.]*,\d+(e[-+]?\d+)?|[-+]?\d{1,3}(,\d{3})+(\.\d+)?", re.I)
_DECIMAL_POINT = re.compile(r"[-+]?\d*\.\d+(e[-+]?\d+)?", re.I)
_LARGE_INTEGER = re.compile(r"[-+]?[1-9]\d{2}")
_SIGNS = re.compile(r"[ '\u00a0\u202f\u2019]")
_TRAILING_ZEROS = re.compile(r"[-+]?\d+\.\d+")
_MAX_NAMED = 3
# values of the score column that mean the run failed
NO_SCORE = (
    "", "-", "--", "—", "n/a", "na", "nan", "none", "null", "diverged", "failed", "fail", "crashed",
    "crash", "error", "oom", "timeout",
)  # fmt: skip


def with_numbers(table: pd.DataFrame, where: str) -> tuple[pd.DataFrame, list[str]]:
    """Return the table with string columns such as ``1,5`` or ``10 000`` parsed as numbers, and
    notes on how they were read.

    Raises:
        ConfigError: a comma may be a decimal comma or a thousands separator.
    """
    texts = {column: _texts(table[column]) for column in table.select_dtypes(["object", "string"])}
    comma = None  # meaning of a comma in the file, once a column reveals it
    if any((table[column] % 1 > 0).any() for column in table.select_dtypes("float")):
        comma = "thousands"  # decimals are written with a point
    for cells in texts.values():
        comma = _comma(cells) or comma
    notes = []
    for column, cells in texts.items():
        plain, note = _plain(cells, comma, f"{where}, column {column}")
        if not note:
            continue
        notes.append(f"Column {column}: {note}")
        versions = are_versions(plain)
        read = dict(zip(cells, plain if versions else map(float, plain), strict=True))
        values = [read.get(str(cell).strip(), cell) for cell in table[column]]
        numbers = pd.Series(values, index=table.index)
        table[column] = (
            pd.to_numeric(numbers, errors="coerce") if _are_numbers(numbers) else numbers
        )
    return table, notes


def _are_numbers(values: "pd.Series[float]") -> bool:
    return bool(pd.to_numeric(values, errors="coerce").notna().eq(values.notna()).all())


def _texts(column: "pd.Series[str]") -> list[str]:
    """Return the distinct strings of a column, without blanks and markers of failed runs."""
    texts = [text.strip() for text in column.dropna().astype(str).unique()]
    return [text for text in texts if text.lower() not in NO_SCORE]


def _comma(cells: Iterable[str]) -> str | None:
    """Return what commas mean in a column: ``decimal``, ``thousands``, or None if the column does
    not reveal it.
    """
    cells = list(cells)
    if not cells or not all(_is_number(cell) for cell in cells):
        return None
    with_comma = [cell for cell in cells if "," in cell]
    if any(not _GROUPED[","].fullmatch(cell) for cell in with_comma):
        return "decimal"
    if any("." in cell or cell.count(",") > 1 for cell in with_comma):
        return "thousands"
    if with_comma and any(_LARGE_INTEGER.fullmatch(cell) for cell in cells):
        return "thousands"  # for example 950 and 1,020
    if not with_comma and any(_DECIMAL_POINT.fullmatch(cell) for cell in cells):
        return None if all(_GROUPED["."].fullmatch(cell) for cell in cells) else "thousands"
    return None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return bool(_WITH_COMMA.fullmatch(cell) or _GROUPED[" "].fullmatch(cell))
    return True


def _plain(cells: list[str], comma: str | None, where: str) -> tuple[list[str], str]:
    """Return the strings of a column in Python's number format, and a note if that changed any.

    Raises:
        ConfigError: a comma may be a decimal comma or a thousands separator.
    """
    joined = [_without_spaces(cell) for cell in cells]
    with_comma = [cell for cell in joined if "," in cell]
    if not with_comma or not all(_is_number(cell) for cell in joined):
        for cell, read in zip(cells, joined, strict=True):
            if cell != read:
                return joined, f"{cell} is read as {read}."
        return joined, ""
    if comma is None:
        raise ConfigError(
            f"the comma in {', '.join(with_comma[:_MAX_NAMED])} may be a decimal comma or a "
            "thousands separator",
            where,
            "write the numbers with a decimal point and without thousands separators",
            code="ambiguous-comma",
        )
    plain = [_without_comma(cell, comma) for cell in joined]
    example = with_comma[0]
    return plain, f"{example} is read as {_without_comma(example, comma)}."


def _without_spaces(cell: str) -> str:
    """Return ``10000`` for ``10 000``, and other strings unchanged."""
    return _SIGNS.sub("", cell) if _GROUPED[" "].fullmatch(cell) else cell


def _without_comma(cell: str, comma: str) -> str:
    """Return ``1020`` for ``1,020`` if a comma separates thousands, and ``1.5`` for ``1,5`` if it
    is a decimal comma.
    """
    if comma == "thousands":
        return cell.replace(",", "")
    if "," not in cell:  # a point in it is a decimal point
        return cell
    return cell.replace(".", "").replace(",", ".")


def are_versions(texts: Iterable[str]) -> bool:
    """Return whether some numbers differ only in trailing zeros, like the versions 1.1 and 1.10."""
    plain = {text.strip() for text in texts if _TRAILING_ZEROS.fullmatch(text.strip())}
    return len({float(text) for text in plain}) < len(plain)
