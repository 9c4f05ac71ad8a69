"""Create a trial from the rows of each run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dashboards.sources.configurations import Point, text_of
from dashboards.sources.costs import cost_columns, costs_of
from dashboards.sources.endings import ended_without_score
from dashboards.sources.run_columns import RunColumns
from dashboards.sources.states import STATE, run_state
from dashboards.trial import Curve, State, TrialRecord
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
    for run, rows in _rows_by_run(runs, columns):
        ending = _ending(run, rows, columns, evaluated)
        step = ending.step
        if counter is not None and ending.state == "COMPLETE":
            step = float(pd.to_numeric(rows[counter], errors="coerce").max())
        number = numbers[run.point]
        name = run_name(rows[columns.trial].iloc[0]) if columns.trial in rows else ""
        trials.append(
            TrialRecord(
                name=name or f"c{number}-s{run.seed}",
                configuration=number,
                seed=run.seed,
                state=ending.state,
                parameters=dict(zip(columns.keys, run.point, strict=True)),
                rule=arm[run.point],
                arm=arm[run.point] if columns.tuned else "",
                task=run.task,
                score=ending.score,
                step=step,
                curves=ending.curves,
                reason=ending.reason,
            )
        )
    trials.sort(key=lambda trial: (int(trial.configuration), len(trial.seed), trial.seed))
    return trials


class RunKey(NamedTuple):
    """The values that distinguish a run from all others."""

    point: Point
    task: str
    seed: str


def _rows_by_run(runs: pd.DataFrame, columns: RunColumns) -> Iterator[tuple[RunKey, pd.DataFrame]]:
    """Yield each run with its rows."""
    for values, rows in runs.groupby(columns.run, sort=False):
        point = values[: len(columns.point)]
        task = " ".join(map(str, values[len(columns.point) : -1]))
        yield RunKey(point, task, str(values[-1])), rows


def run_name(value: Any) -> str:
    """Return a value of a run-name column as text; empty if it is missing. Pandas makes integers
    floats if one is missing, so 3.0 is the name 3.
    """
    if pd.isna(value):
        return ""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value)


def with_costs(
    trials: Sequence[TrialRecord], runs: pd.DataFrame, columns: RunColumns
) -> list[TrialRecord]:
    """Return the trials; complete ones get their costs up to the point of comparison."""
    names = cost_columns(runs, columns)
    if not names:
        return list(trials)
    rows_of = dict(_rows_by_run(runs, columns))
    counted_in = []
    for trial in trials:
        if trial.state == "COMPLETE":
            rows = rows_of[RunKey(tuple(trial.parameters.values()), trial.task, trial.seed)]
            trial = replace(trial, costs=costs_of(rows, names, columns, trial.step))
        counted_in.append(trial)
    return counted_in


@dataclass(frozen=True)
class _Ending:
    """How a run ended, and its evaluations."""

    state: State
    reason: str = ""  # why it failed
    score: float = math.nan
    step: float = math.nan
    curves: Mapping[str, Curve] = field(default_factory=dict)


def _ending(run: RunKey, rows: pd.DataFrame, columns: RunColumns, evaluated: set[float]) -> _Ending:
    """Return how a run ended, and its evaluations.

    It has failed if its rows mark it as failed, if it has no score, or if its last evaluations have
    none. ``evaluated`` are the steps at which any run has a score.
    """
    state = run_state(rows[STATE])
    if state == "FAIL":
        return _Ending("FAIL", "marked as failed in the table")
    stepwise = columns.step in rows
    if stepwise and columns.at_step is not None:
        rows = rows[rows[columns.step] <= columns.at_step]
        evaluated = {step for step in evaluated if step <= columns.at_step}
    scored = rows[rows[columns.score].notna()]
    if stepwise:  # logs saved with each checkpoint repeat earlier rows
        scored = scored.drop_duplicates([columns.step, columns.score])
    steps = scored[columns.step] if stepwise else pd.Series(0.0, index=scored.index)
    if steps.duplicated().any():
        raise _same_twice(run, scored, columns)
    if scored.empty and columns.at_step is not None:
        raise ConfigError(
            f"{_settings(run, columns)} seed {run.seed} has no evaluation up to step "
            f"{columns.at_step}",
            "--at-step",
            "choose a later step",
            code="no-evaluation",
        )
    values = scored[columns.score].set_axis(steps).sort_index()
    if values.empty or not np.isfinite(values.iloc[-columns.evaluations :]).all():
        return _Ending("FAIL", "no score")
    if stepwise and ended_without_score(rows, columns, evaluated):
        return _Ending("FAIL", "no score in its last evaluations")
    last_step = float(values.index[-1])
    if columns.axis:  # average evaluations at the same value of a coarse axis
        values = scored.groupby(columns.axis)[columns.score].mean()
    curve = Curve(tuple(map(float, values.index)), tuple(map(float, values)))
    score = curve.score(columns.evaluations)
    if columns.take == "best":
        score = columns.best([value for value in curve.values if np.isfinite(value)])
    has_curve = len(curve.steps) > 1 or columns.axis
    return _Ending(
        state,
        score=score,
        step=last_step if stepwise else math.nan,
        curves={columns.metric: curve} if has_curve else {},
    )


def _settings(run: RunKey, columns: RunColumns) -> str:
    """Return the settings and the task of a run, for errors."""
    settings = text_of(dict(zip(columns.keys, run.point, strict=True)))
    text = shortened(settings, _MAX_CHARS)
    return f"{text} on {shortened(run.task, _MAX_CHARS)}" if run.task else text


def _same_twice(run: RunKey, rows: pd.DataFrame, columns: RunColumns) -> ConfigError:
    setting = _settings(run, columns)
    if columns.step in rows and rows[columns.step].nunique() > 1:
        repeated = rows[columns.step][rows[columns.step].duplicated()].iloc[0]
        rows = rows[rows[columns.step] == repeated]
        setting += f" at {columns.step} {repeated:.0f}"
    what = f"{setting} has seed {run.seed} several times"
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
