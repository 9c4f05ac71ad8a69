"""Build results from a table of any program's runs: one row per run or per evaluation."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from dashboards.results import Results
from dashboards.sources.axis import at_budget, check_axis, with_axis
from dashboards.sources.conditions import Condition
from dashboards.sources.configurations import (
    arm_names,
    arms_and_baseline,
    notes_on_spelling,
    numbered,
)
from dashboards.sources.delimited import NOTES
from dashboards.sources.directions import DIRECTION, direction
from dashboards.sources.endings import check_endings, counter_of
from dashboards.sources.names import with_columns
from dashboards.sources.repeated_seeds import with_seeds_apart
from dashboards.sources.roles import (
    check_explained,
    quoted,
    seed_column,
    with_step,
    without_summaries,
)
from dashboards.sources.run_columns import RunColumns
from dashboards.sources.run_trials import by_task, trials_of, with_costs
from dashboards.sources.shapes import one_row_per_run, without_lists
from dashboards.sources.solved_problems import with_problems
from dashboards.sources.states import STATE, row_states, state_column
from dashboards.sources.tasks import over_tasks
from dashboards.sources.typed_columns import kind_of_values, typed
from dashboards.sources.units import check_units
from dashboards.sources.unlisted_settings import check_unlisted_settings, explained_columns
from dashboards.sources.unseeded_runs import LABELS, check_independence, with_labels
from dashboards.sources.unseeded_runs import NOTE as UNSEEDED
from dashboards.statistics.budgets import Budget
from dashboards.trial import Objective, TrialRecord
from loptune.errors import ConfigError
from loptune.terminal.table import counted


def read_runs(table: pd.DataFrame, columns: RunColumns, *, adaptive: bool = True) -> Results:
    """Return the results of a table; ``adaptive`` is described in `TrialSet`.

    A configuration without rows for a seed that others have has no trial on that seed, rather than
    a failed one.

    Raises:
        ConfigError: the table does not allow a verdict.
    """
    pairing = columns.pairing
    table, columns, notes = _with_roles(table, columns)
    finished = _finished_runs(table, columns)
    runs = finished.table
    state = finished.state_column
    notes += finished.notes
    notes += check_unlisted_settings(runs, columns, state)
    check_explained(runs, columns, explained_columns(runs, columns, state))
    if columns.seed == LABELS and pairing == "auto":
        check_independence(runs, columns)

    numbers = numbered(runs, columns)
    notes += notes_on_spelling(numbers)
    arm = arm_names(numbers, columns)
    counter = counter_of(runs, columns)
    trials = trials_of(runs, columns, numbers, arm, counter)
    arms, baseline = arms_and_baseline(numbers, arm, columns)
    _check_pruned(trials, None if columns.against is not None else baseline, runs, state)

    tasks = by_task(trials)
    budgets: dict[str, Budget | None] = {}
    for task, part in tasks.items():
        if columns.axis:
            tasks[task], budgets[task], of_budget = at_budget(part, columns)
            notes += [f"{task}: {note}" if task else note for note in of_budget]
        check_endings(tasks[task], columns, counter)
        check_units(tasks[task], columns)
    trials = with_costs([trial for part in tasks.values() for trial in part], runs, columns)
    tasks = by_task(trials)
    task_of: dict[Hashable, str] = {}
    if columns.task:
        compared_with = None if columns.against is not None else baseline
        together = over_tasks(trials, columns, compared_with)
        trials = together.trials
        task_of = together.task_of
        notes += together.notes
    _check_seeds(trials, columns)
    notes += _notes_on_scores(runs, columns)

    kinds = {}
    for key, column in zip(columns.keys, columns.point, strict=True):
        kinds[key] = kind_of_values(runs[column])
    results = Results(
        name="",
        objective=_objective(runs, columns),
        trials=tuple(trials),
        searched=tuple(columns.keys),
        kinds=kinds,
        source=columns.source,
        adaptive=adaptive,
        baseline=baseline,
        arms=arms if columns.tuned else (),
        warnings=tuple(notes),
        task_of=task_of,
        budget=budgets[""] if columns.axis and not columns.task else None,
        at_equal_amounts=bool(columns.axis),
        place=columns.place if columns.place in runs else "",
    )
    if columns.task:
        results = replace(results, by_task=_results_by_task(results, tasks, budgets))
    if columns.problems is not None:
        return with_problems(results, columns.problems)
    return results


def _with_roles(
    table: pd.DataFrame, columns: RunColumns
) -> tuple[pd.DataFrame, RunColumns, list[str]]:
    """Return the table with one row per run or evaluation, ``columns`` with the roles filled in
    that no option specified, and notes on both.
    """
    notes = list(table.attrs.get(NOTES, ()))
    of_source = table.attrs.get(DIRECTION)
    table = table.reset_index(drop=True)  # concatenated tables may repeat index labels
    check_axis(columns)
    table, of_shape = one_row_per_run(table, columns)
    notes += of_shape
    table = without_lists(table)
    _check_columns(table, columns)
    columns, of_names = with_columns(columns, table)
    notes += of_names
    mode, of_direction = direction(columns.score, columns.mode, of_source)
    columns = replace(columns, mode=mode)
    notes += of_direction
    if not columns.seed:
        seed = seed_column(table, columns)
        if seed is not None:
            columns = replace(columns, seed=seed)
            notes.append(f"The seed is the column {seed}.")
    table, left_out = without_summaries(table, columns)
    notes += left_out
    if not columns.seed:
        table, columns = with_labels(table, columns)
        notes.append(UNSEEDED)
    columns, of_step = with_step(columns, table)
    notes += of_step
    _check_roles(columns)
    return table, columns, notes


@dataclass(frozen=True)
class _FinishedRuns:
    """The rows of the finished runs, with typed columns and a unique seed for each run."""

    table: pd.DataFrame
    state_column: str | None  # the table's column with the end state of each run, if it has one
    notes: list[str]


def _finished_runs(table: pd.DataFrame, columns: RunColumns) -> _FinishedRuns:
    """Type the columns, leave out runs that have not ended, and distinguish runs that repeat a
    seed.
    """
    notes = []
    runs = typed(table, columns)
    state = state_column(runs, columns)
    runs[STATE] = row_states(runs, columns)
    runs, of_running = _without_running(runs, columns, state)
    if state is not None:
        notes.append(f"How each run ended is read from the column {state}.")
    notes += of_running
    runs, of_repeated = with_seeds_apart(runs, columns)
    notes += of_repeated
    if columns.axis:
        runs, of_axis = with_axis(runs, columns)
        notes += of_axis
    return _FinishedRuns(runs, state, notes)


def _objective(runs: pd.DataFrame, columns: RunColumns) -> Objective:
    """Return the objective by which the runs are compared."""
    assert columns.mode is not None, "_with_roles has not set the mode"
    window = 1
    if columns.step in runs and columns.take == "last" and not columns.axis:
        window = columns.evaluations
    return Objective(columns.metric, columns.mode, window)


def _notes_on_scores(runs: pd.DataFrame, columns: RunColumns) -> list[str]:
    """Return notes on options that choose other scores than each run's last."""
    notes = []
    if columns.at_step is not None:
        longest = runs[columns.step].max() if columns.step in runs else columns.at_step
        notes.append(
            f"Runs are compared at step {columns.at_step:g}; the longest reached {longest:g}."
        )
    if columns.take == "best":
        notes.append(
            "The score is the best of each run's evaluations, which is biased: it favors noisy "
            "runs and runs with many evaluations."
        )
    return notes


def _results_by_task(
    results: Results,
    tasks: Mapping[str, Sequence[TrialRecord]],
    budgets: Mapping[str, Budget | None],
) -> dict[str, Results]:
    """Return the results of each task on which the baseline ran."""
    parts = {}
    for task, trials in tasks.items():
        if results.baseline in {trial.configuration for trial in trials}:
            parts[task] = replace(
                results, trials=tuple(trials), task_of={}, warnings=(), budget=budgets.get(task)
            )
    return parts


def _without_running(
    runs: pd.DataFrame, columns: RunColumns, state: str | None
) -> tuple[pd.DataFrame, list[str]]:
    """Drop runs that are still running, whose scores are not final; also return a note on them.

    Raises:
        ConfigError: every run is still running.
    """
    running = runs[STATE] == "RUNNING"
    if not running.any():
        return runs, []
    assert state is not None, "only a column with states marks runs as running"
    crashed = quoted(str(Condition(state, "=", str(runs.loc[running, state].iloc[0]))))
    if running.all():
        raise ConfigError(
            "no run has finished",
            f"column {state}",
            f"wait until the runs have finished; if they crashed, add --failed {crashed}",
            code="no-run-ended",
        )
    named = runs.loc[running, columns.run].drop_duplicates()
    return runs[~running], [
        f"Left out: {counted(len(named), 'run')} still running, according to the column "
        f"{state}. If they crashed, add --failed {crashed}."
    ]


def _check_columns(table: pd.DataFrame, columns: RunColumns) -> None:
    if not columns.by:
        raise ConfigError(
            "no column defines a configuration", "--by", "pass at least one with --by", code="no-by"
        )
    if table.empty:
        raise ConfigError(
            "the table has no rows",
            columns.source,
            "choose rows that exist with --where",
            code="no-rows",
        )


def _check_roles(columns: RunColumns) -> None:
    for column in columns.every:
        if columns.every.count(column) > 1:
            raise ConfigError(
                f"{column} is used in two options",
                "command line",
                "use each column in only one option",
                code="named-twice",
            )


def _check_pruned(
    trials: Sequence[TrialRecord], baseline: str | None, runs: pd.DataFrame, state: str | None
) -> None:
    """Reject the runs if a pruner stopped some runs of the baseline or of every other
    configuration: the remaining scores are biased upward. ``baseline`` is None if it is a number,
    or if settings are tuned.
    """
    pruned = {trial.configuration for trial in trials if trial.state == "PRUNED"}
    others = {trial.configuration for trial in trials} - {baseline}
    if baseline in pruned:
        whose = "the baseline"
    elif others and others <= pruned:
        whose = "every configuration" if baseline is None else "every other configuration"
    else:
        return
    assert state is not None, "only a column with states marks runs as pruned"
    words = runs.loc[runs[STATE] == "PRUNED", state].unique()
    unpruned = ",".join(str(Condition(state, "!=", str(word))) for word in words)
    raise ConfigError(
        f"runs of {whose} were pruned",
        f"column {state}",
        "run them without a pruner, because the scores of unpruned runs are biased upward; to "
        f"judge the unpruned runs all the same, add --where {quoted(unpruned)}",
        code="runs-pruned",
    )


def _check_seeds(trials: Sequence[TrialRecord], columns: RunColumns) -> None:
    """Reject a single seed, and seeds without effect."""
    scores: dict[str, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.state == "COMPLETE":
            scores[trial.configuration].append(trial.score)
    repeated = [row for row in scores.values() if len(row) > 1]
    if not repeated:
        raise ConfigError(
            "every configuration has one run, so noise cannot be estimated",
            columns.source if columns.seed == LABELS else columns.seed,
            "run each configuration on at least 3 seeds",
            code="one-seed",
        )
    if not columns.may_be_equal and all(len(set(row)) == 1 for row in repeated):
        raise ConfigError(
            "all seeds of a configuration have exactly the same score: the runs are identical",
            columns.seed,
            "check that the seed affects data order and sampling, then run again",
            code="identical-runs",
        )
