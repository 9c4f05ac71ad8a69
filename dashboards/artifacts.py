"""Files that the trials of a sweep sent to MLflow: which problems each solved, and what it answered."""

import json
import tempfile
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from numpy.typing import NDArray

from dashboards.sweep import Solved
from trainer.evaluation.correctness import read_correctness
from trainer.metrics.declared import COMPLETIONS_TABLE, CORRECTNESS_FILE

MAX_PROBLEMS = 3
MAX_CHARACTERS = 4_000  # of a prompt or a completion; the end of a completion holds its answer
_COLUMNS = ["problem", "prompt", "completion", "reward", "correct", "answer", "difficulty", "step"]
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


@dataclass(frozen=True)
class Answered:
    """A problem and what each of some trials answered."""

    prompt: str
    answer: str
    difficulty: str
    completions: Mapping[str, tuple[str, float, bool]]  # trial -> completion, reward, whether it is right


def read_samples(client: Any, runs: Iterable[tuple[str, str, str]]) -> list[Answered]:
    """Problems that all runs answered, each a (trial, run id, URI of its artifacts); the disputed ones first."""
    with tempfile.TemporaryDirectory(prefix="loptune-samples-") as scratch:
        files = {
            trial: _artifact(client, run_id, artifacts, COMPLETIONS_TABLE, Path(scratch))
            for trial, run_id, artifacts in runs
        }
        tables = {trial: _last_evaluation(path) for trial, path in files.items() if path is not None}
    if not tables or any(table.empty for table in tables.values()):
        return []
    shared = set.intersection(*(set(table.index) for table in tables.values()))
    first = next(iter(tables.values()))
    found = [
        Answered(
            _head(first.prompt[problem]),
            str(first.answer[problem]),
            str(first.difficulty[problem]),
            {
                trial: (_tail(table.completion[problem]), float(table.reward[problem]), bool(table.correct[problem]))
                for trial, table in tables.items()
            },
        )
        for problem in first.index
        if problem in shared
    ]
    found.sort(key=lambda one: len({right for _, _, right in one.completions.values()}), reverse=True)
    return found[:MAX_PROBLEMS]


def _last_evaluation(path: Path) -> pd.DataFrame:
    """The first completion of each problem at the last step of a run's table; empty where there is none."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        rows = pd.DataFrame(table["data"], columns=table["columns"])[_COLUMNS]
    except (OSError, ValueError, KeyError, TypeError):
        return pd.DataFrame(columns=_COLUMNS)
    last: pd.DataFrame = rows[rows.step == rows.step.max()]
    return last.drop_duplicates("problem").set_index("problem")


def _head(text: Any) -> str:
    return text if len(text := str(text)) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} ..."


def _tail(text: Any) -> str:
    return text if len(text := str(text)) <= MAX_CHARACTERS else f"... {text[-MAX_CHARACTERS:]}"


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
