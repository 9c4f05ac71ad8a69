"""Read MLflow's ``mlruns`` folders, which contain plain text files, without importing MLflow.

An experiment's folder has a description, ``meta.yaml``, and one folder per run. A run's folder also
has a ``meta.yaml``, and one file per parameter, tag and metric in ``params/``, ``tags/`` and
``metrics/``. Empty folders may be missing, because Git does not store them.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dashboards.sources.content import read_text
from dashboards.sources.mlflow_table import StoredRun
from loptune.errors import MissingError, StorageError, first_line, shortened
from loptune.files import check_regular
from loptune.foreign_yaml import MAX_BYTES, read_foreign_yaml
from loptune.yaml_document import nearest

PASS_THE_STORE = "pass the store with --store: sqlite:///FILE, http://HOST:PORT or an mlruns folder"
_META = "meta.yaml"
_STATES = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}
# possible number of fields per metric line: time, value, step, and two for a dataset
_FIELDS = (2, 3, 5)


def folder_of(uri: str) -> Path | None:
    """Return the folder of a ``file:`` URI or path; None for servers and databases."""
    if uri.startswith("file:"):
        return Path(unquote(urlsplit(uri).path))
    return None if "://" in uri else Path(uri)


def is_folder_of_mlflow(place: Path) -> bool:
    """Return whether a folder is an ``mlruns`` folder, or an experiment's folder in it."""
    return (place / _META).is_file() or any(place.glob(f"*/{_META}"))


def read_folder(place: Path, experiment: str | None = None) -> list[StoredRun]:
    """Return the runs of all experiments, or of the named experiment, oldest first. ``place`` may
    be the folder of one experiment.

    Raises:
        MissingError: no such experiment.
        StorageError: there is no such folder, a file in it cannot be read, or a link points outside
            of it.
    """
    if not place.is_dir():
        raise StorageError(
            "MLflow folder not found", str(place), PASS_THE_STORE, code="no-mlflow-store"
        )
    root = place.resolve()
    folders = [root] if (root / _META).is_file() else list(_described_folders(root, root))
    experiments: dict[str, list[Path]] = {}
    for folder in folders:
        meta = _description(folder / _META)
        if meta.get("lifecycle_stage") != "deleted":
            experiments.setdefault(str(meta.get("name", folder.name)), []).append(folder)
    if experiment is not None and experiment not in experiments:
        raise MissingError(
            f"no experiment {experiment}",
            str(place),
            nearest(experiment, experiments),
            code="no-experiment",
        )
    runs: list[tuple[str, StoredRun]] = []
    for name, folders_of_name in experiments.items():
        if experiment in (None, name):
            for folder in folders_of_name:
                runs += _runs(folder, name, root)
    # start times are strings of milliseconds: padding makes them sort as numbers
    runs.sort(key=lambda timed: (timed[0].zfill(20), timed[1].number))
    return [run for _, run in runs]


def _runs(folder: Path, experiment: str, root: Path) -> Iterator[tuple[str, StoredRun]]:
    """Yield (start time, run) for each run in an experiment's folder."""
    for place in _described_folders(folder, root):
        meta = _description(place / _META)
        if meta.get("lifecycle_stage") == "deleted":
            continue
        tags = _texts(place / "tags", root)
        metrics = _files(place / "metrics", root)
        run = StoredRun(
            number=place.name,
            name=str(meta.get("run_name") or tags.get("mlflow.runName", place.name)),
            experiment=experiment,
            status=_STATES.get(str(meta.get("status")), str(meta.get("status"))),
            params=_texts(place / "params", root),
            tags=tags,
            metrics=frozenset(name for name, path in metrics.items() if path.stat().st_size),
            history=partial(_history, metrics),
        )
        yield str(meta.get("start_time", "")), run


def _described_folders(folder: Path, root: Path) -> Iterator[Path]:
    """Yield the subfolders that contain a ``meta.yaml``, sorted by name."""
    for place in sorted(folder.iterdir()):
        if not place.name.startswith(".") and (place / _META).is_file():
            _check_inside(place, root)
            _check_inside(place / _META, root)
            yield place


def _check_inside(path: Path, root: Path) -> None:
    """Reject a link that points outside of the folder: the rows would show the content of other
    files.

    Raises:
        StorageError: the link points outside.
    """
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        raise StorageError(
            "a link in MLflow's folder points outside of it",
            str(path),
            "copy what it points to into the folder",
            code="link-outside",
        )


def _files(folder: Path, root: Path) -> dict[str, Path]:
    """Return name -> file for the files below a folder; names may contain slashes."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            _check_inside(Path(parent, name), root)
        for name in files:
            path = Path(parent, name)
            check_regular(path)
            found[path.relative_to(folder).as_posix()] = path
    _check_inside(folder, root)
    return dict(sorted(found.items()))


def _texts(folder: Path, root: Path) -> dict[str, str]:
    return {name: read_text(path, MAX_BYTES) for name, path in _files(folder, root).items()}


def _history(metrics: dict[str, Path], name: str) -> list[tuple[int, float]]:
    path = metrics[name]
    points = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        fields = line.split()
        try:
            if len(fields) not in _FIELDS:
                raise ValueError(f"{len(fields)} values")
            points.append((int(fields[2]) if len(fields) > 2 else 0, float(fields[1])))
        except ValueError as error:
            raise StorageError(
                f"cannot read an MLflow metric: {shortened(first_line(error), 80)}",
                f"{path}, line {number}",
                "restore the file, or delete the folder of its run",
                code="unreadable-store",
            ) from None
    return points


def _description(path: Path) -> dict[str, Any]:
    reason = "it is not a YAML mapping"
    try:
        content = read_foreign_yaml(read_text(path, MAX_BYTES), typed=False)
        if isinstance(content, dict):
            return content
    except ValueError as error:
        reason = first_line(error)
    raise StorageError(
        f"cannot read the description of an MLflow run or experiment: {reason}",
        str(path),
        "restore the file, or delete its folder",
        code="unreadable-store",
    )
