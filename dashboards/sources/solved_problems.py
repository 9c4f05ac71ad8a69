"""Add the problems that each run solved to results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from dashboards.results import Results
from dashboards.sources.run_trials import run_name
from dashboards.trial import TrialRecord
from loptune.errors import ConfigError
from loptune.parameter_names import shown
from loptune.terminal.table import counted
from loptune.yaml_document import nearest

_ROUNDING = 1e-3  # tolerance for scores rounded in the table


def with_problems(results: Results, problems: pd.DataFrame) -> Results:
    """Return the results with the problems that each run solved.

    Raises:
        ConfigError: a column is missing, a value of ``correct`` is not a number, several runs have
            the same name, or the problems do not reproduce the scores.
    """
    rated = _rated(problems)
    _check_unique_names(results.trials)
    trials = []
    for trial in results.trials:
        if trial.state == "COMPLETE":
            trial = replace(trial, solved=_accuracies(trial, rated))
        trials.append(trial)
    return replace(results, trials=tuple(trials))


def _rated(problems: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of each run (row) on each problem (column); NaN without a record."""
    for column in ("trial", "problem", "correct"):
        if column not in problems:
            raise ConfigError(
                f"no column {column}",
                "--problems",
                nearest(column, map(str, problems.columns)),
                code="unknown-column",
            )
    if problems.empty:
        raise ConfigError(
            "the table has no rows", "--problems", "list all problems of every run", code="no-rows"
        )
    correct = pd.to_numeric(problems.correct, errors="coerce")
    if correct.isna().any():
        raise ConfigError(
            "a value in the column correct is missing or not a number",
            "--problems",
            "write 1 or 0 in the column correct",
            code="no-number",
        )
    named = problems.assign(correct=correct, trial=problems.trial.map(run_name))
    return named.pivot_table(index="trial", columns="problem", values="correct", aggfunc="mean")


def _check_unique_names(trials: Sequence[TrialRecord]) -> None:
    """Reject runs with the same name, because the problems of a name belong to one run."""
    runs = Counter(trial.name for trial in trials if trial.state == "COMPLETE")
    for name, count in runs.items():
        if count > 1:
            raise ConfigError(
                f"{counted(count, 'run')} have the name {name}",
                "--problems",
                "pass the column with a different name for each run: --trial COLUMN",
                code="repeated-run-name",
            )


def _accuracies(trial: TrialRecord, rated: pd.DataFrame) -> tuple[float, ...]:
    """Return the accuracy of a run on each problem. Their mean must be its score."""
    hint = "list all problems of every run, and pass the run column with --trial"
    accuracies: np.ndarray = rated.reindex([trial.name]).to_numpy(dtype=float)[0]
    missing = int(np.isnan(accuracies).sum())
    if missing:
        raise ConfigError(
            f"run {trial.name} lacks {missing} of {counted(len(accuracies), 'problem')}",
            "--problems",
            hint,
            code="problems-differ",
        )
    accuracy = float(accuracies.mean())
    if abs(accuracy - trial.score) >= _ROUNDING:
        raise ConfigError(
            f"run {trial.name} has score {shown(trial.score)}, but its problems average "
            f"{shown(accuracy)}",
            "--problems",
            hint,
            code="problems-differ",
        )
    return tuple(map(float, accuracies))
