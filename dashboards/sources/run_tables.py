"""Read tables of runs from files and folders."""

import glob
import os
import re
from collections import Counter
from pathlib import Path

import pandas as pd

from dashboards.sources import tensorboard, wandb_tables
from dashboards.sources.content import MAX_BYTES, is_utf16
from dashboards.sources.delimited import NOTES
from dashboards.sources.directions import DIRECTION
from dashboards.sources.formats import read_table, reading
from dashboards.sources.json_tables import read_json_table
from dashboards.sources.settings import FILES, settings_beside
from loptune.errors import ConfigError, MissingError, StorageError, listed
from loptune.files import check_regular
from loptune.terminal.table import counted

_SPECIAL = re.compile(r"(\{[A-Za-z_]\w*\}|\*\*/|\*|\?)")
_PATTERNS = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
_MAX_NAMED = 5
# files that describe the machine or the environment
_OF_MACHINES = {"wandb-metadata.json", "package.json", "environment.json"}
EVENTS = "folder of event files"  # name of a temporary column
EMPTY = "file without rows"  # name of a temporary column
_FOUND = "found"  # attribute: pattern of the files that were read below a folder, and their number
# names of result files in a folder, the most informative first
_RESULTS = (
    "trainer_state.json", "all_results.json", "results.csv", "progress.csv", "metrics.csv",
    "result.json", "*monitor.csv", "progress.txt", "metrics.jsonl", "results*.json",
    "wandb-summary.json", "*.csv",
    "*.jsonl", "*.json",
)  # fmt: skip


def read_files(pattern: str) -> pd.DataFrame:
    """Return the rows of all files that match.

    ``*``, ``**/`` and ``?`` match as in a shell. ``{name}`` matches like ``*`` and becomes a
    column. The settings next to a file become columns such as ``config.yaml:KEY``. For a folder,
    TensorBoard's event files, W&B's local runs or the result files below it are read, and the
    column ``run`` contains the path of each run's folder, relative to this folder.

    Raises:
        MissingError: no file matches.
        ConfigError: unsupported file type.
        StorageError: a file cannot be read.
    """
    pattern = os.path.normpath(pattern)
    parts = _SPECIAL.split(pattern)
    wanted = "".join(map(_glob_of, parts))
    paths = [Path(path) for path in sorted(glob.glob(wanted, recursive=True))]
    if not paths:
        raise MissingError(
            "no such file",
            pattern,
            "check the path; quote patterns so that the shell does not expand them",
            code="no-such-file",
        )
    try:
        named = re.compile("".join(map(_expression, parts)))
    except re.error:
        raise ConfigError(
            "two parts of the pattern have the same name",
            pattern,
            "use a different name for each {part}",
            code="repeated-part",
        ) from None
    tables = [_read(path, named) for path in _without_doubles(paths)]
    table = pd.concat(tables, ignore_index=True)
    notes = []
    for path in paths:
        if path.is_file() and is_utf16(path):
            notes.append(f"{path.name} is UTF-16 and was read as such.")
    if EVENTS in table:
        notes += _check_scalars(table, pattern)
        table = table.drop(columns=EVENTS)
    if EMPTY in table:
        notes += _check_rows(table, pattern)
        table = table.drop(columns=EMPTY)
    found: Counter[str] = Counter()
    for part in tables:
        notes += part.attrs.get(NOTES, ())
        found.update(part.attrs.get(_FOUND, {}))
    for inside, count in found.items():
        notes.append(f"Read: {Path(pattern, inside)}, {counted(count, 'file')}.")
    table.attrs[NOTES] = notes
    said = {part.attrs[DIRECTION] for part in tables if DIRECTION in part.attrs}
    if len(said) == 1:
        table.attrs[DIRECTION] = said.pop()
    return table


def _text(path: str | Path) -> str:
    """Return a path, or a part of one, as a string; invalid bytes are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _glob_of(part: str) -> str:
    """Return a part of a pattern in the syntax of `glob`."""
    if part.startswith("{"):
        return "*"
    return part if _SPECIAL.fullmatch(part) else glob.escape(part)


def _check_scalars(table: pd.DataFrame, pattern: str) -> list[str]:
    """Return a note on folders of event files without scalars: runs that crashed at their start.

    Raises:
        StorageError: no folder has a scalar.
    """
    without = table[table["step"].isna()][EVENTS].dropna()
    if without.empty:
        return []
    if len(without) == len(table):
        raise StorageError(
            "no scalars in the event files",
            pattern,
            "leave them out, or log scalars with add_scalar",
            code="no-scalars",
        )
    named = listed(list(without), _MAX_NAMED)
    return [f"Treated as failed, because they have no scalars: {named}."]


def _check_rows(table: pd.DataFrame, pattern: str) -> list[str]:
    """Return a note on files that have only a header: runs that crashed at their start.

    Raises:
        StorageError: no file has a row.
    """
    without = table[EMPTY].dropna()
    if len(without) == len(table):
        raise StorageError(
            "no rows; a failed run needs one row with a blank score",
            pattern,
            "choose files that contain results",
            code="unreadable-file",
        )
    return [
        f"Treated as failed, because they have only a header: {listed(list(without), _MAX_NAMED)}."
    ]


def _expression(part: str) -> str:
    if part.startswith("{"):
        return f"(?P<{part[1:-1]}>[^/]+)"
    return _PATTERNS.get(part, re.escape(part))


def _without_doubles(paths: list[Path]) -> list[Path]:
    """Return the paths with one event file per folder: a resumed run writes a second one, and
    `_read` reads them together.
    """
    events: dict[Path, Path] = {}
    kept = []
    for path in paths:
        if path.match(tensorboard.PATTERN) and path.is_file():
            if path.parent in events:
                continue
            events[path.parent] = path
        kept.append(path)
    return kept


def _read(path: Path, named: re.Pattern[str]) -> pd.DataFrame:
    with reading(path, "a table of runs"):
        table = _read_folder(path) if path.is_dir() else _read_file(path)
    if match := named.fullmatch(str(path)):
        attributes = table.attrs
        table = table.assign(**{name: _text(part) for name, part in match.groupdict().items()})
        table.attrs = attributes
    return table


def _read_file(path: Path) -> pd.DataFrame:
    check_regular(path)
    if path.stat().st_size > MAX_BYTES:
        raise StorageError(
            f"the file is larger than {MAX_BYTES >> 20} MiB",
            str(path),
            "keep only the rows and columns that the comparison needs",
            code="file-too-large",
        )
    if path.match(tensorboard.PATTERN):
        return _read_events(path.parent)
    table = read_table(path)
    if table.empty:
        if not len(table.columns):
            raise ValueError("no rows; a failed run needs one row with a blank score")
        table = pd.DataFrame([{**dict.fromkeys(table.columns), EMPTY: _text(path)}])
    return table.assign(**settings_beside(path))


def _read_folder(folder: Path) -> pd.DataFrame:
    summaries = wandb_tables.run_summaries(folder)
    if summaries:
        runs = []
        for path in summaries:
            summary = read_json_table(path).assign(run=_text(path.parents[1].name))
            runs.append(summary.assign(**settings_beside(path)))
        return pd.concat(runs, ignore_index=True)
    places = tensorboard.event_folders(folder)
    if len(places) == 1:
        return _read_events(places[0])
    if places:
        tables = []
        for place in places:
            run = _text(place.relative_to(folder))
            tables.append(_read_events(place).assign(run=run))
        return pd.concat(tables, ignore_index=True)
    files = _result_files(folder)
    if not files:
        raise ConfigError(
            "no results found in this folder",
            str(folder),
            "write a pattern such as 'runs/{algo}-s{seed}/metrics.csv'",
            code="folder-without-pattern",
        )
    runs = []
    for path in files:
        inside = path.relative_to(folder)
        table = _read_file(path)
        if "run" not in table:
            run = _text(path.name.partition(".")[0])
            if len(inside.parts) > 1:
                run = _text(inside.parent)
            table = table.assign(run=run)
        runs.append(table)
    table = pd.concat(runs, ignore_index=True)
    depth = len(files[0].relative_to(folder).parts)  # the same for all files
    name = files[0].name
    if len({path.name for path in files}) > 1:
        name = f"*{files[0].suffix}"
    table.attrs[_FOUND] = {str(Path(*["*"] * (depth - 1), name)): len(files)}
    return table


def _read_events(folder: Path) -> pd.DataFrame:
    """Return the scalars of a folder's event files with the settings next to them; one row without
    values if there are none.
    """
    table = tensorboard.read_events(folder)
    if table.empty:
        table = pd.DataFrame({"step": [float("nan")]})
    return table.assign(**settings_beside(folder / EVENTS), **{EVENTS: _text(folder)})


def _result_files(folder: Path) -> list[Path]:
    """Return the most informative result files below a folder, from the depth that has most of
    them. They are all files of one type if they are directly in the folder or each in its own
    folder, else the files with the most common name.
    """
    for result in _RESULTS:
        by_depth: dict[int, list[Path]] = {}
        for path in sorted(folder.rglob(result)):
            if _may_be_results(path, folder):
                by_depth.setdefault(len(path.relative_to(folder).parts), []).append(path)
        if not by_depth:
            continue
        depth = max(by_depth, key=lambda depth: len(by_depth[depth]))  # the first in a tie
        files = by_depth[depth]
        if depth == 1:
            return files
        if len({path.parent for path in files}) == len(files):
            return files  # one file per folder; the names may include the time
        names = Counter(path.name for path in files)
        [(most_common, _)] = names.most_common(1)
        return [path for path in files if path.name == most_common]
    return []


def _may_be_results(path: Path, folder: Path) -> bool:
    """Return whether a file may contain results: not hidden, not a settings file, not part of a
    loptune report.
    """
    inside = path.relative_to(folder).parts
    hidden = any(part.startswith(".") for part in inside)
    settings = path.name in {name.split("/")[-1] for name in FILES} | _OF_MACHINES
    return (
        path.is_file()
        and not hidden
        and not settings
        and not (path.parent / "report.html").exists()
    )
