"""What trials of a sweep answered to the same problems at their last evaluation, read back from MLflow."""

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.artifacts import artifact
from trainer.metrics.declared import COMPLETIONS_TABLE

MAX_PROBLEMS = 3
MAX_CHARACTERS = 4_000  # of a prompt or a completion; the end of a completion holds its answer
_COLUMNS = ["problem", "prompt", "completion", "reward", "correct", "answer", "difficulty", "step"]


@dataclass(frozen=True)
class Answered:
    """A problem and what each of some trials answered."""

    prompt: str
    answer: str
    difficulty: str
    completions: Mapping[str, tuple[str, float, bool]]  # trial -> completion, reward, whether it is right


def read_samples(client: Any, runs: Iterable[tuple[str, str, str]]) -> list[Answered]:
    """Problems that all of the trials answered; first those where some were right and others wrong.

    Args:
        client: of MLflow.
        runs: (trial, run id, URI of its artifacts).
    """
    with tempfile.TemporaryDirectory(prefix="loptune-samples-") as scratch:
        files = {
            trial: artifact(client, run_id, artifacts, COMPLETIONS_TABLE, Path(scratch))
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
                trial: (
                    _tail(table.completion[problem]),
                    float(table.reward[problem]),
                    bool(table.correct[problem]),
                )
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
