"""Add the problems that each run solved to results."""

from dataclasses import replace

import pandas as pd

from dashboards.results import Results
from loptune.errors import ConfigError
from loptune.parameter_names import shown
from loptune.yaml_document import nearest

_ROUNDING = 1e-3  # tolerance for scores rounded in the table


def with_problems(results: Results, problems: pd.DataFrame) -> Results:
    """Return the results with the problems that each run solved.

    Raises:
        ConfigError: a column is missing, a value of ``correct`` is not a number, or the problems do
            not reproduce the scores.
    """
    for column in ("trial", "problem", "correct"):
        if column not in problems:
            raise ConfigError(
                f"no column {column}",
                "--problems",
                nearest(column, map(str, problems.columns)),
                code="unknown-column",
            )
    rated = problems.assign(
        correct=pd.to_numeric(problems.correct, errors="coerce"), trial=problems.trial.astype(str)
    )
    if rated.correct.isna().any():
        raise ConfigError(
            "a value in the column correct is missing or not a number",
            "--problems",
            "write 1 or 0 in the column correct",
            code="no-number",
        )
    table = rated.pivot_table(index="trial", columns="problem", values="correct", aggfunc="mean")
    table = table.reindex([trial.name for trial in results.trials])
    trials = []
    for trial in results.trials:
        if trial.state == "COMPLETE":
            accuracy = table.loc[trial.name].to_numpy()
            if not abs(accuracy.mean() - trial.score) < _ROUNDING:
                raise ConfigError(
                    f"run {trial.name} has score {shown(trial.score)}, but its problems "
                    f"average {shown(float(accuracy.mean()))}",
                    "--problems",
                    "list all problems of every run, and pass the run column with --trial",
                    code="problems-differ",
                )
            trial = replace(trial, solved=tuple(map(float, accuracy)))
        trials.append(trial)
    return replace(results, trials=tuple(trials))
