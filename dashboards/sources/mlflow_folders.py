"""Open MLflow's ``mlruns`` folders for reading.

MLflow writes into a folder that it opens, takes ids of digits for numbers, and stops at a metric
that a crashed run left empty. So it gets a folder of links, with repaired copies of such files.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml

from dashboards.sources.content import read_text
from loptune.errors import StorageError, first_line

_META = "meta.yaml"
_MAX_BYTES = 1 << 20
_NUMBER = re.compile(
    r"^(run_id|run_uuid|experiment_id|run_name|name): *(\d[\d_]*|\d+e\d+) *$", re.M
)


def folder_of(uri: str) -> Path | None:
    """Return the folder of a ``file:`` URI or path; None for servers and databases."""
    if uri.startswith("file:"):
        return Path(unquote(urlsplit(uri).path))
    return None if "://" in uri else Path(uri)


@contextmanager
def readable_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder that MLflow can read in place of ``folder``, which stays as it is.

    Raises:
        StorageError: there is no such folder, or the description of a run cannot be read.
    """
    if not folder.is_dir():
        raise StorageError(
            "no such folder of MLflow",
            str(folder),
            "name the store with --store: sqlite:///FILE, http://HOST:PORT or an mlruns folder",
            code="no-mlflow-store",
        )
    with tempfile.TemporaryDirectory(prefix="loptune-mlruns-") as scratch:
        for place in folder.resolve().iterdir():
            if not place.name.startswith("."):
                _link(place, Path(scratch) / place.name)
        yield Path(scratch)


def _link(place: Path, copy: Path) -> None:
    """Link an experiment's folder, or write one with links to its runs if some need a repair."""
    described = place / _META
    if not described.is_file():
        copy.symlink_to(place)
        return
    runs = [run for run in place.iterdir() if (run / _META).is_file()]
    repairs = {run: _repaired(run / _META) for run in runs}
    blank = {run for run in runs if any(_blank_metrics(run))}
    own = _repaired(described)
    if own is None and not blank and not any(repairs.values()):
        copy.symlink_to(place)
        return
    copy.mkdir()
    for entry in place.iterdir():
        if entry == described and own is not None:
            (copy / _META).write_text(own)
        elif entry in blank or repairs.get(entry) is not None:
            _copy_run(entry, copy / entry.name, repairs[entry])
        else:
            (copy / entry.name).symlink_to(entry)


def _copy_run(run: Path, copy: Path, description: str | None) -> None:
    """Write a run's folder with links, the repaired description, and no blank metrics."""
    blank = set(_blank_metrics(run))
    copy.mkdir()
    for entry in run.iterdir():
        if entry.name == _META and description is not None:
            (copy / _META).write_text(description)
        elif entry.name == "metrics" and blank:
            for path in entry.rglob("*"):
                if path.is_file() and path not in blank:
                    link = copy / path.relative_to(run)
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(path)
            (copy / "metrics").mkdir(exist_ok=True)
        else:
            (copy / entry.name).symlink_to(entry)


def _blank_metrics(run: Path) -> Iterator[Path]:
    for path in (run / "metrics").rglob("*"):
        if path.is_file() and not path.stat().st_size:
            yield path


def _repaired(path: Path) -> str | None:
    """Return a description with ids and names of digits as texts; None if it needs no repair."""
    text = read_text(path, _MAX_BYTES)
    reason = ""
    try:
        if not isinstance(yaml.safe_load(text), dict):
            reason = "it describes no run"
    except yaml.YAMLError as error:
        reason = first_line(error)
    if reason:
        raise StorageError(
            f"cannot read the description of an MLflow run or experiment: {reason}",
            str(path),
            "restore the file, or remove the folder that it is in",
            code="unreadable-store",
        )
    repaired = _NUMBER.sub(r"\1: '\2'", text)
    return None if repaired == text else repaired
