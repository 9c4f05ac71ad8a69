"""Which problems the trials of a sweep solved, read back from MLflow."""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboards.artifacts import artifact
from trainer.evaluation.correctness import read_correctness
from trainer.metrics.declared import CORRECTNESS_FILE

_FIRST = "eval/accuracy"


@dataclass(frozen=True)
class Solved:
    """The share of correct completions of every problem, over the evaluations that make up the score."""

    accuracy: NDArray[np.float64]  # [P]
    step: float  # by which the score of one evaluation can change: 1 / (problems x completions)


def read_solved(client: Any, runs: Iterable[tuple[str, str, str]], metric: str, window: int) -> dict[str, Solved]:
    """Trial -> what it solved; without trials that recorded nothing, and empty for other metrics than accuracy.

    Args:
        client: of MLflow.
        runs: (trial, run id, URI of its artifacts).
        metric: the objective, an accuracy of a whole evaluation set.
        window: evaluations that make up the score.
    """
    found = {}
    with tempfile.TemporaryDirectory(prefix="loptune-solved-") as scratch:
        for trial, run_id, artifacts in runs:
            path = artifact(client, run_id, artifacts, CORRECTNESS_FILE, Path(scratch))
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
