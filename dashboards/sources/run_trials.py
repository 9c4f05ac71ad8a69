"""Create a trial from the rows of each run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from dashboards.sources.configurations import Point, text_of
from dashboards.sources.costs import cost_columns, costs_of
from dashboards.sources.endings import ended_without_score
from dashboards.sources.run_columns import RunColumns
from dashboards.sources.states import STATE, run_state
from dashboards.trial import Curve, TrialRecord
from loptune.errors import ConfigError, shortened

_MAX_NAMED = 8  # maximum number of names in a message
_MAX_CHARS = 80  # length limit of a value in a message


def trials_of(
    runs: pd.DataFrame,
    columns: RunColumns,
    numbers: Mapping[Point, str],
    arm: Mapping[Point, str],
    counter: str | None,
) -> list[TrialRecord]:
    """Return a trial for every configuration and seed that has rows."""
    evaluated: set[float] = set()
    if columns.step in runs:
        evaluated = set(runs.loc[runs[columns.score].notna(), columns.step])
    trials = []
    for key, rows in runs.groupby(columns.run, sort=False):
        values = key[: len(columns.point)]
        seed = key[-1]
        trial = TrialRecord(
            name=f"c{numbers[values]}-s{seed}",
            configuration=numbers[values],
            seed=str(seed),
            state="FAIL",
            parameters=dict(zip(columns.keys, values, strict=True)),
            rule=arm[values],
            arm=arm[values] if columns.tuned else "",
            task=" ".join(map(str, key[len(columns.point) : -1])),
        )
        if columns.trial in rows:
            trial = replace(trial, name=str(rows[columns.trial].iloc[0]))
        trial = _with_scores(trial, rows, columns, evaluated)
        if counter is not None and trial.state == "COMPLETE":
            trial = replace(trial, step=float(pd.to_numeric(rows[counter], errors="coerce").max()))
        trials.append(trial)
    trials.sort(key=lambda trial: (int(trial.configuration), len(trial.seed), trial.seed))
    return trials


def with_costs(
    trials: Sequence[TrialRecord], runs: pd.DataFrame, columns: RunColumns
) -> list[TrialRecord]:
    """Return the trials; complete ones get their costs up to the point of comparison."""
    names = cost_columns(runs, columns)
    if not names:
        return list(trials)
    rows_of = {}
    for key, rows in runs.groupby(columns.run, sort=False):
        values = key[: len(columns.point)]
        task = " ".join(map(str, key[len(columns.point) : -1]))
        rows_of[values, task, str(key[-1])] = rows
    counted_in = []
    for trial in trials:
        if trial.state == "COMPLETE":
            rows = rows_of[tuple(trial.parameters.values()), trial.task, trial.seed]
            trial = replace(trial, costs=costs_of(rows, names, columns, trial.step))
        counted_in.append(trial)
    return counted_in


def _with_scores(
    trial: TrialRecord, rows: pd.DataFrame, columns: RunColumns, evaluated: set[float]
) -> TrialRecord:
    """Return a trial with the evaluations in its rows.

    It has failed if its rows mark it as failed, if it has no score, or if its last evaluations have
    none. ``evaluated`` are the steps at which any run has a score.
    """
    state = run_state(rows[STATE])
    if state == "FAIL":
        return replace(trial, reason="marked as failed in the table")
    stepwise = columns.step in rows
    if stepwise and columns.at_step is not None:
        rows = rows[rows[columns.step] <= columns.at_step]
        evaluated = {step for step in evaluated if step <= columns.at_step}
    scored = rows[rows[columns.score].notna()]
    if stepwise:  # logs saved with each checkpoint repeat earlier rows
        scored = scored.drop_duplicates([columns.step, columns.score])
    steps = scored[columns.step] if stepwise else pd.Series(0.0, index=scored.index)
    if steps.duplicated().any():
        raise _same_twice(scored, columns, trial)
    if scored.empty and columns.at_step is not None:
        raise ConfigError(
            f"{trial.rule} seed {trial.seed} has no evaluation up to step {columns.at_step}",
            "--at-step",
            "choose a later step",
            code="no-evaluation",
        )
    values = scored[columns.score].set_axis(steps).sort_index()
    if values.empty or not np.isfinite(values.iloc[-columns.evaluations :]).all():
        return replace(trial, reason="no score")
    if stepwise and ended_without_score(rows, columns, evaluated):
        return replace(trial, reason="no score in its last evaluations")
    last_step = float(values.index[-1])
    if columns.axis:  # average evaluations at the same value of a coarse axis
        values = scored.groupby(columns.axis)[columns.score].mean()
    curve = Curve(tuple(map(float, values.index)), tuple(map(float, values)))
    score = curve.score(columns.evaluations)
    if columns.take == "best":
        score = columns.best([value for value in curve.values if np.isfinite(value)])
    trial = replace(trial, state=state, score=score)
    if stepwise:
        trial = replace(trial, step=last_step)
    if len(curve.steps) > 1 or columns.axis:
        trial = replace(trial, curves={columns.metric: curve})
    return trial


def _same_twice(rows: pd.DataFrame, columns: RunColumns, trial: TrialRecord) -> ConfigError:
    setting = shortened(text_of(trial.parameters), _MAX_CHARS)
    if trial.task:
        setting += f" on {shortened(trial.task, _MAX_CHARS)}"
    if columns.step in rows and rows[columns.step].nunique() > 1:
        repeated = rows[columns.step][rows[columns.step].duplicated()].iloc[0]
        rows = rows[rows[columns.step] == repeated]
        setting += f" at {columns.step} {repeated:.0f}"
    what = f"{setting} has seed {trial.seed} several times"
    separate = (
        "" if columns.pairing == "unpaired" else "; if these are separate runs, add --unpaired"
    )
    others = [column for column in rows if column not in (columns.score, columns.step)]
    differ = [str(column) for column in others if rows[column].nunique() > 1]
    if differ:
        what += f"; its rows differ in {', '.join(differ[:_MAX_NAMED])}"
    return ConfigError(
        what,
        columns.source,
        "drop the repeated run, or the rows that a restarted run repeated, or pass the column that "
        "distinguishes the rows with --by, --step or --task, or select rows with --where"
        + separate,
        code="repeated-run",
    )


def by_task(trials: Sequence[TrialRecord]) -> dict[str, list[TrialRecord]]:
    """Return task -> its trials."""
    by_task: dict[str, list[TrialRecord]] = {}
    for trial in trials:
        by_task.setdefault(trial.task, []).append(trial)
    return by_task
