"""Strict CSV and JSON row readers."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from loptune.errors import ConfigError, first_line
from loptune.files import text_encoding

Values = Mapping[str, Any]  # column -> value

_MAX_LINE_CHARS = 1 << 24


def read_csv(path: Path) -> Iterator[Values]:
    """Yield the rows of a CSV file as strings; values missing at the end of a row are None.

    Raises:
        ConfigError: wrong separator or encoding, duplicate column names, a line that is too long,
            or a row with too many values.
        csv.Error: unclosed quote, or text after a closing quote.
        OSError: the file cannot be read.
    """
    reader = csv.DictReader(_lines(path, newline=""), strict=True)
    names = reader.fieldnames or ()
    _check_names(names, f"{path}, line 1")
    others = [mark for mark in ";\t|" if len(names) == 1 and mark in names[0]]
    if others:
        raise ConfigError(
            f"the columns are separated by {others[0]!r} instead of commas",
            f"{path}, line 1",
            "separate the columns with commas",
            code="csv-separator",
        )
    for row in reader:
        if None in row:  # csv.DictReader stores extra values under None
            where = f"{path}, line {reader.line_num}"
            raise ConfigError(
                "more values than columns",
                where,
                "quote values that contain commas",
                code="csv-too-many-values",
            )
        yield row


def _lines(path: Path, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a UTF-8 or UTF-16 file, without a byte order mark.

    Raises:
        ConfigError: the file has a different encoding, or a line that is too long.
    """
    number = 0
    with _open_text(path, newline) as lines:
        try:
            while line := lines.readline(_MAX_LINE_CHARS):
                number += 1
                if len(line) == _MAX_LINE_CHARS:
                    raise ConfigError(
                        f"the line is too long ({_MAX_LINE_CHARS} characters or more)",
                        f"{path}, line {number}",
                        "write one row per line",
                        code="line-too-long",
                    )
                yield line
        except UnicodeDecodeError as error:
            raise _undecodable(path, error) from None


def _open_text(path: Path, newline: str | None = None) -> TextIO:
    with path.open("rb") as file:
        encoding = text_encoding(file.read(2))
    return path.open(encoding=encoding, newline=newline)


def _undecodable(path: Path, error: UnicodeDecodeError) -> ConfigError:
    """Return the error for bytes that are invalid in the encoding of the file."""
    if error.encoding.startswith("utf-16"):
        return ConfigError(
            f"the file has a UTF-16 byte order mark, but is not valid UTF-16: {error.reason}",
            str(path),
            "copy or export the file again, preferably as UTF-8",
            code="damaged-utf-16",
        )
    return ConfigError(
        f"the text is not UTF-8: {error.reason} {error.object[error.start]:#04x}",
        str(path),
        "save the file again as UTF-8",
        code="not-utf-8",
    )


def first_repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs a second time, or None."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _check_names(names: Sequence[str], where: str) -> None:
    twice = first_repeated(names)
    if twice is not None:
        raise ConfigError(
            f"duplicate column {twice}", where, "rename or remove one", code="column-twice"
        )


def _as_object(where: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    _check_names([name for name, _ in pairs], where)
    return dict(pairs)


def read_json(path: Path) -> Iterator[Values]:
    """Yield the objects of a JSON lines file, or of a JSON array in a ``.json`` file. A row that is
    a list of turns of a conversation becomes an object with the keys "0", "1", ...

    Raises:
        ConfigError: invalid JSON or encoding, a line that is too long, a row that is not an object,
            a duplicate key, or a lone surrogate; the error shows the line or row, except for a
            wrong encoding.
        OSError: the file cannot be read.
    """
    content = ""
    if path.suffix == ".json":
        with _open_text(path) as file:
            try:
                content = file.read()
            except UnicodeDecodeError as error:
                raise _undecodable(path, error) from None
    is_array = content.lstrip().startswith("[")
    lines = [content] if is_array else _lines(path)
    for number, text in enumerate(lines, start=1):
        if not text.strip():
            continue
        try:
            parsed = json.loads(
                text.rstrip("\n"), object_pairs_hook=partial(_as_object, f"{path}, line {number}")
            )
        except json.JSONDecodeError as error:
            hint = "correct the line" if is_array else "write one JSON object per line"
            raise ConfigError(
                f"invalid JSON: {error.msg}",
                f"{path}, line {number + error.lineno - 1}",
                hint,
                code="json-invalid",
            ) from error
        # a number with too many digits, or deep nesting
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"cannot read the JSON: {first_line(error)}",
                f"{path}, line {number}",
                "shorten the number, or nest the values less deeply",
                code="json-unreadable",
            ) from error
        for index, item in enumerate(parsed if is_array else [parsed], start=1):
            where = f"{path}, row {index}" if is_array else f"{path}, line {number}"
            _check_characters(item, where)
            yield _as_row(item, where)


def _check_characters(item: Any, where: str) -> None:
    """Raise if a string contains a lone surrogate, which JSON can encode but UTF-8 cannot."""
    try:
        json.dumps(item, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise ConfigError(
            f"{half} is a lone surrogate, which is not a valid character",
            where,
            "fix the text",
            code="text-invalid",
        ) from None


def _is_turn(item: Any) -> bool:
    """Return whether a value is a turn of a conversation, which has a ``role`` or ``from`` key."""
    return isinstance(item, dict) and not {"role", "from"}.isdisjoint(item)


def _as_row(item: Any, where: str) -> Values:
    if isinstance(item, list) and item and all(map(_is_turn, item)):
        # A conversation, as in the files of Open-Reasoner-Zero (ORZ): its turns become columns "0",
        # "1", ..., as in the Hub's version of that dataset.
        return {str(number): turn for number, turn in enumerate(item)}
    if isinstance(item, list) and item and isinstance(item[0], dict):
        raise ConfigError(
            "the line is an array of rows",
            where,
            "rename the file to *.json, or write one object per line",
            code="row-no-object",
        )
    if not isinstance(item, dict):
        raise ConfigError(
            f"a row must be a JSON object, got {type(item).__name__}",
            where,
            'write {"prompt": ..., "answer": ...}',
            code="row-no-object",
        )
    return item
