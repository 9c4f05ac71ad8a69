"""Files that the trials of a sweep sent to MLflow: which problems each solved."""

import tempfile
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from mlflow.exceptions import MlflowException
from numpy.typing import NDArray

from dashboards.sweep import Solved
from trainer.evaluation.correctness import read_correctness
from trainer.metrics.declared import CORRECTNESS_FILE

_FIRST = "eval/accuracy"


def read_solved(client: Any, runs: Iterable[tuple[str, str, str]], metric: str, window: int) -> dict[str, Solved]:
    """Trial -> what it solved, for runs (trial, run id, URI of its artifacts) that recorded it.

    Empty for metrics other than the accuracy of a whole evaluation set; ``window`` evaluations make up the score.
    """
    found = {}
    with tempfile.TemporaryDirectory(prefix="loptune-solved-") as scratch:
        for trial, run_id, artifacts in runs:
            path = _artifact(client, run_id, artifacts, CORRECTNESS_FILE, Path(scratch))
            if path is None:  # recorded before there was such a file
                continue
            sets = read_correctness(path)
            name = next(iter(sets), None) if metric == _FIRST else metric.removeprefix(f"{_FIRST}/")
            if name is not None and name in sets:
                found[trial] = _windowed(sets[name], window)
    return found


def _windowed(by_step: dict[int, tuple[NDArray[np.float64], int]], window: int) -> Solved:
    last = [by_step[step] for step in sorted(by_step)[-window:]]
    shares, completions = [share for share, _ in last], last[-1][1]
    return Solved(np.mean(shares, axis=0), 1 / (len(shares[-1]) * completions))


def _artifact(client: Any, run_id: str, artifacts: str, name: str, scratch: Path) -> Path | None:
    """A file of a run; None where it recorded none.

    It is read where the artifacts lie on this machine, as MLflow itself would ask the store; else downloaded.
    """
    parts = urllib.parse.urlsplit(artifacts)
    if parts.scheme in ("", "file"):
        path: Path | None = Path(urllib.parse.unquote(parts.path)) / name
    else:
        path = _downloaded(client, run_id, name, scratch / run_id)
    return path if path is not None and path.is_file() else None


def _downloaded(client: Any, run_id: str, name: str, folder: Path) -> Path | None:
    folder.mkdir(exist_ok=True)
    try:
        return Path(client.download_artifacts(run_id, name, str(folder)))
    except (MlflowException, OSError):
        return None
