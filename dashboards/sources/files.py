"""Read tables of runs from CSV, JSON Lines or Parquet files."""

import csv
import glob
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from trainer.errors import ConfigError, MissingError, StorageError, first_line
from trainer.run_folder import RunFolder
from trainer.text_tables import read_csv, read_json

_SPECIAL = re.compile(r"(\{[A-Za-z_]\w*\}|\*\*/|\*|\?)")
_PATTERNS = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}


def read_files(pattern: str) -> pd.DataFrame:
    """Return the rows of all files that match.

    ``*``, ``**/`` and ``?`` match as in a shell. ``{name}`` matches like ``*`` and becomes a
    column. The values of a ``config.yaml`` beside a file become columns ``config.yaml:KEY``.

    Raises:
        MissingError: no file matches.
        ConfigError: unsupported file type.
        StorageError: a file cannot be read.
    """
    parts = _SPECIAL.split(pattern)
    literal = [part if _SPECIAL.fullmatch(part) else glob.escape(part) for part in parts]
    wanted = "".join("*" if part.startswith("{") else part for part in literal)
    paths = sorted(glob.glob(wanted, recursive=True))
    if not paths:
        raise MissingError(
            "no such file",
            pattern,
            "check the path; quote a pattern, so that the shell does not expand it",
        )
    try:
        named = re.compile("".join(map(_expression, parts)))
    except re.error as error:
        raise ConfigError(error.msg, pattern, "give each part another name") from None
    return pd.concat([_read(Path(path), named) for path in paths], ignore_index=True)


def _expression(part: str) -> str:
    if part.startswith("{"):
        return f"(?P<{part[1:-1]}>[^/]+)"
    return _PATTERNS.get(part, re.escape(part))


def _read(path: Path, named: re.Pattern[str]) -> pd.DataFrame:
    reader = _READERS.get(path.suffix)
    if reader is None:
        raise ConfigError(
            f"unsupported file type: {path.suffix or 'no suffix'}", str(path), ", ".join(_READERS)
        )
    try:
        table = reader(path)
        if table.empty:
            raise ValueError("no rows; a failed run needs one row with a blank score")
        settings = _settings(RunFolder(path.parent).config)
    except (OSError, ValueError, csv.Error, yaml.YAMLError) as error:
        raise StorageError(
            f"cannot read it: {first_line(error)}", str(path), "repair it or leave it out"
        ) from None
    if match := named.fullmatch(str(path)):
        settings |= match.groupdict()
    return table.assign(**settings)


def _json_lines(path: Path) -> pd.DataFrame:
    """Return one row per line; nested keys are joined by dots."""
    return pd.json_normalize(map(dict, read_json(path)))


def _csv(path: Path) -> pd.DataFrame:
    """Read a CSV file, after checking it for columns that pandas would silently shift or rename."""
    for _ in read_csv(path):
        pass
    return pd.read_csv(path)


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    settings = yaml.safe_load(path.read_text("utf-8"))
    if not isinstance(settings, Mapping):
        raise ValueError(f"{path.name} is not a mapping of settings")
    flat = pd.json_normalize(dict(settings)).iloc[0].to_dict()
    lists = {key: str(value) for key, value in flat.items() if isinstance(value, list)}
    return {f"{path.name}:{key}": value for key, value in {**flat, **lists}.items()}


_READERS: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".csv": _csv,
    ".jsonl": _json_lines,
    ".parquet": pd.read_parquet,
}
