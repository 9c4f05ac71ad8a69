"""Compare runs at the same value of a growing column, such as the number of tokens."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from dashboards.sources.run_columns import RunColumns
from dashboards.statistics.budgets import Budget, amounts_at, check_grows, common_budget, score_at
from dashboards.trial import Curve, TrialRecord
from loptune.errors import ConfigError, listed, shortened
from loptune.parameter_names import shown
from loptune.terminal.table import counted

# tolerance for short runs: fraction of the configuration's longest run, as in `endings`
_SHORT = 0.05
# relative tolerance for a budget copied from a message: `amount` may round up slightly
_ROUNDING = 1e-9
_EXACT = 1e-6  # tolerance that keeps whole numbers whole, as a fraction of the last printed digit
_MAX_NAMED = 6
_MAX_CHARS = 40  # length limit of a value in a message


def check_axis(columns: RunColumns) -> None:
    """Reject options that contradict each other.

    Raises:
        ConfigError: an option needs the axis or cannot be combined with it, or the window is not a
            number of evaluations.
    """
    if not columns.axis:
        if columns.at is not None:
            raise ConfigError(
                "--at needs an axis",
                "--at",
                "add the axis, such as --axis tokens; for a training step, use --at-step",
                code="no-axis",
            )
        if columns.window is not None and (columns.window < 1 or columns.window % 1):
            raise ConfigError(
                f"{columns.window:g} is not a number of evaluations",
                "--window",
                "write a whole number, at least 1; with --axis, the window is a length on the axis",
                code="not-a-count",
            )
    elif columns.at_step is not None:
        raise ConfigError(
            "--at-step cannot be combined with --axis",
            "--at-step",
            f"use --at {columns.at_step:g} to compare at this value of {columns.axis}",
            code="two-places",
        )


def with_axis(runs: pd.DataFrame, columns: RunColumns) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with a value of the axis in every row that has a score, and notes.

    Programs often log the axis and the score in separate rows. Blank values of the axis are
    interpolated over the training step. Rows after the last value are extrapolated at the last
    rate, by at most one interval between two values. Other scores without a value are left out.

    Raises:
        ConfigError: the axis has no numbers, has no value in a run with a score, decreases within a
            run, or does not grow in any run.
    """
    amounts = pd.to_numeric(runs[columns.axis], errors="coerce").astype(float)
    if not np.isfinite(amounts).any():
        texts = runs[columns.axis].dropna().astype(str)
        example = f", but values such as '{shortened(texts.iloc[0], _MAX_CHARS)}'"
        raise ConfigError(
            f"the column {columns.axis} has no numbers{'' if texts.empty else example}",
            columns.axis,
            "write plain numbers without units, or choose another column that grows during a run",
            code="no-number",
        )
    runs = runs.assign(**{columns.axis: amounts.where(np.isfinite(amounts))})
    _check_amounts(runs, columns)
    if columns.step == columns.axis:
        filled = runs
    else:
        filled = runs.groupby(columns.run, sort=False, group_keys=False)[list(runs)].apply(
            _filled, columns
        )
    lost = filled[columns.score].notna() & filled[columns.axis].isna()
    if not lost.any():
        return filled, []
    return filled[~lost], [
        f"Left out: {counted(int(lost.sum()), 'evaluation')} before the first or after the last "
        f"value of {columns.axis} in a run."
    ]


def _check_amounts(runs: pd.DataFrame, columns: RunColumns) -> None:
    """Reject runs with scores but without an amount, and amounts that are constant in every run.

    Raises:
        ConfigError: there are such runs.
    """
    by_run = runs.groupby(columns.run, sort=False)
    scores = by_run[columns.score].count()
    amounts = by_run[columns.axis].nunique()
    without = [key for key in scores.index if scores[key] and not amounts[key]]
    if without:
        named = [_run_text(dict(zip(columns.run, key, strict=True))) for key in without]
        raise ConfigError(
            f"{counted(len(without), 'run')} of {len(scores)} {_have(len(without))} no value of "
            f"{columns.axis}: {listed(named, _MAX_NAMED)}",
            columns.axis,
            "choose a column that every run logged, or leave these runs out with --where",
            code="no-amount",
        )
    if (scores > 1).all() and (amounts == 1).all():
        raise ConfigError(
            f"{columns.axis} does not grow in any run",
            columns.axis,
            "choose a column that grows during a run; if it contains amounts per step, add them up "
            "first",
            code="axis-constant",
        )


def _run_text(values: Mapping[str, object]) -> str:
    return " ".join(f"{name}={shown(value)}" for name, value in values.items())


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _filled(rows: pd.DataFrame, columns: RunColumns) -> pd.DataFrame:
    """Return the rows of one run with blank values of the axis interpolated over the step."""
    known = rows[rows[columns.axis].notna() & rows[columns.step].notna()]
    by_step = known.groupby(columns.step)[columns.axis].max()  # sorted
    amounts = Curve(tuple(by_step.index.astype(float)), tuple(by_step.astype(float)))
    run = _run_text({name: rows[name].iloc[0] for name in columns.run})
    check_grows(columns.axis, amounts, columns.axis, columns.step, run)
    blank = rows[columns.axis].isna() & rows[columns.step].notna()
    if by_step.empty or not blank.any():
        return rows
    wanted = rows[columns.step][blank].astype(float).tolist()
    filled = rows.copy()
    filled.loc[blank, columns.axis] = amounts_at(wanted, amounts)
    return filled


def at_budget(
    trials: Sequence[TrialRecord], columns: RunColumns
) -> tuple[list[TrialRecord], Budget | None, list[str]]:
    """Return the trials with their scores at the common budget, the budget itself, and notes on it.
    Without a complete trial, the budget is None and the trials are unchanged.

    Args:
        trials: trials of one task, with the score as a curve over the axis.
        columns: roles of the table's columns.

    Raises:
        ConfigError: a run ends before the budget, or well before other runs of its configuration;
            its first evaluation is after the start of the window; or every run has a single
            evaluation.
    """
    complete = [trial for trial in trials if trial.state == "COMPLETE"]
    if not complete:
        return list(trials), None, []
    if all(len(_curve(trial, columns).steps) == 1 for trial in complete):
        raise ConfigError(
            "every run has one evaluation, so there is nothing to interpolate",
            "--axis",
            "use a table with several evaluations per run, or leave out --axis",
            code="no-curve",
        )
    if columns.at is None and not columns.allow_unequal:
        _check_short(complete, columns)
    at = columns.at
    ends = [_end(trial, columns) for trial in complete]
    common = min(ends)
    if at is not None and common < at <= common * (1 + _ROUNDING):
        at = common
    curves = [_curve(trial, columns) for trial in complete]
    budget = common_budget(curves, columns.axis, at, columns.window)
    _check_covered(complete, columns, budget, common)
    scored = []
    for trial in trials:
        if trial.state == "COMPLETE":
            trial = _scored(trial, columns, budget)
        scored.append(trial)
    largest = ", the largest value that all runs reach" if columns.at is None else ""
    note = (
        f"Runs are compared at {columns.axis} {amount(budget.at)}{largest}; they end at "
        f"{amount(min(ends))} to {amount(max(ends))}."
    )
    if columns.take == "last" and budget.window:
        note += (
            " A score is the mean of the linearly interpolated curve over the last "
            f"{amount(budget.window)} before that point."
        )
    return scored, budget, [note]


def amount(value: float) -> str:
    """Format an amount with six digits, rounded down so that every run reaches it."""
    if value <= 0:
        return f"{value:.6g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - 5)
    return f"{math.floor(value / unit + _EXACT) * unit:.12g}"


def _curve(trial: TrialRecord, columns: RunColumns) -> Curve:
    return trial.curves[columns.metric]


def _start(trial: TrialRecord, columns: RunColumns) -> float:
    """Return the axis value at a run's first evaluation."""
    return float(_curve(trial, columns).steps[0])


def _end(trial: TrialRecord, columns: RunColumns) -> float:
    """Return the axis value at a run's last evaluation."""
    return float(_curve(trial, columns).steps[-1])


def _scored(trial: TrialRecord, columns: RunColumns, budget: Budget) -> TrialRecord:
    """Return a complete trial with its score at the budget, or as failed if it has none there."""
    curve = _curve(trial, columns)
    score = score_at(curve, budget)
    if columns.take == "best":
        pairs = zip(curve.steps, curve.values, strict=True)
        until = [value for place, value in pairs if place <= budget.at and np.isfinite(value)]
        score = columns.best(until)
    if not np.isfinite(score):
        return replace(trial, state="FAIL", reason="no score at the budget", score=float("nan"))
    return replace(trial, score=score, step=budget.at)


def _check_short(complete: Sequence[TrialRecord], columns: RunColumns) -> None:
    """Reject runs that end well before others of their configuration, both on the axis and in
    steps: they may have crashed.

    Raises:
        ConfigError: there are such runs.
    """
    short = []
    for trial in complete:
        alike = [other for other in complete if other.configuration == trial.configuration]
        longest = max(_end(other, columns) for other in alike)
        by_axis = _end(trial, columns) < (1 - _SHORT) * longest
        by_step = trial.step < (1 - _SHORT) * max(other.step for other in alike)
        if by_axis and by_step:
            short.append(trial)
    if not short:
        return
    common = min(_end(trial, columns) for trial in complete)
    raise ConfigError(
        f"{_counted_runs(short, complete)} ended well before others of the same configuration: "
        f"{_named(short, _end, columns)}",
        columns.axis,
        f"compare all at the largest common value with --at {amount(common)}; if they failed, "
        "mark them with --failed COLUMN=VALUE",
        code="short-runs",
    )


def _check_covered(
    complete: Sequence[TrialRecord], columns: RunColumns, budget: Budget, common: float
) -> None:
    """Reject a budget that a run does not reach, and a window that starts before a run's first
    evaluation.

    Raises:
        ConfigError: a run does not cover the window.
    """
    short = [trial for trial in complete if _end(trial, columns) < budget.at]
    if short:
        raise ConfigError(
            f"{_counted_runs(short, complete)} ended before {columns.axis} {amount(budget.at)}: "
            f"{_named(short, _end, columns)}",
            "--at",
            f"use --at {amount(common)}, the largest value that all runs reach",
            code="short-runs",
        )
    start = budget.at if columns.take == "best" else budget.start
    late = [trial for trial in complete if _start(trial, columns) > start]
    if not late:
        return
    first = max(_start(trial, columns) for trial in complete)
    hint = f"pass a value larger than {amount(first)} to --at"
    if first <= budget.at:
        hint = f"the longest window is --window {amount(budget.at - first)}"
    raise ConfigError(
        f"{_counted_runs(late, complete)} {_have(len(late))} no evaluation up to {columns.axis} "
        f"{amount(start)}; first evaluations: {_named(late, _start, columns)}",
        "--at" if first > budget.at else "--window",
        hint,
        code="no-evaluation",
    )


def _counted_runs(some: Sequence[TrialRecord], every: Sequence[TrialRecord]) -> str:
    return f"{counted(len(some), 'run')} of {len(every)}"


def _named(
    trials: Sequence[TrialRecord],
    place_of: Callable[[TrialRecord, RunColumns], float],
    columns: RunColumns,
) -> str:
    named = []
    for trial in trials:
        place = f"{columns.axis} {amount(place_of(trial, columns))}"
        named.append(f"{trial.rule} seed {trial.seed} ({place})")
    return listed(named, _MAX_NAMED)
