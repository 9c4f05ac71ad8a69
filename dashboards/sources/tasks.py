"""Average the runs of each seed over tasks, or keep tasks separate if each has its own seeds."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dashboards.sources.run_columns import RunColumns
from dashboards.trial import TrialRecord, joint_state
from loptune.errors import ConfigError, listed
from loptune.terminal.table import counted

# Tasks share seeds if at least this fraction of an arm's seeds on one task ran on all tasks. The
# task on which the arm ran the fewest seeds counts.
_SHARED = 0.5
_MAX_NAMED = 4


# configuration -> task -> its runs
Cells = dict[str, dict[str, list[TrialRecord]]]


@dataclass(frozen=True)
class TasksTogether:
    """The trials with which configurations are compared over all tasks."""

    trials: list[TrialRecord]
    # seed -> task, if tasks have separate seeds; empty if a trial is the mean of a seed's runs
    task_of: dict[Hashable, str]
    notes: list[str]


def over_tasks(
    trials: Sequence[TrialRecord], columns: RunColumns, baseline: str | None
) -> TasksTogether:
    """Return the trials to compare over all tasks.

    Configurations without runs on some task are left out, because their mean would be over other
    tasks.

    Raises:
        ConfigError: the baseline or every other configuration has no runs on some task, or no
            successful ones; or every configuration has a single run per task, so noise cannot be
            estimated.
    """
    tasks = list(dict.fromkeys(trial.task for trial in trials))
    cells: Cells = {}
    for trial in trials:
        cells.setdefault(trial.configuration, {}).setdefault(trial.task, []).append(trial)
    rules = {trial.configuration: trial.rule for trial in trials}
    whole = {number: cell for number, cell in cells.items() if len(cell) == len(tasks)}
    partial = [f"{rules[number]} ({len(cells[number])})" for number in cells if number not in whole]
    if _nothing_to_compare(whole, cells, baseline):
        raise ConfigError(
            f"means over the {len(tasks)} tasks are not comparable, because these configurations "
            f"ran on fewer tasks: {listed(partial, _MAX_NAMED)}",
            ",".join(columns.task),
            f"choose tasks on which all configurations ran, with --where {columns.task[0]}=VALUE",
            code="lacks-tasks",
        )
    notes = []
    if partial:
        notes.append(
            f"Left out, because they did not run on all {len(tasks)} tasks: "
            f"{listed(partial, _MAX_NAMED)}."
        )
    if all(_share_seeds(cell) for cell in whole.values()):
        means, notes_on_means = _seed_means(whole, len(tasks))
        return TasksTogether(means, {}, [*notes, *notes_on_means])

    scored = {number: cell for number, cell in whole.items() if _scored_on_all_tasks(cell)}
    failed = [rules[number] for number in whole if number not in scored]
    if _nothing_to_compare(scored, cells, baseline):
        raise ConfigError(
            f"means over the {len(tasks)} tasks are not comparable, because all runs of a task "
            f"failed in {listed(failed, _MAX_NAMED)}",
            ",".join(columns.task),
            f"choose tasks with successful runs, with --where {columns.task[0]}=VALUE",
            code="failed-task",
        )
    if failed:
        notes.append(f"Left out, because all runs of a task failed: {listed(failed, _MAX_NAMED)}.")
    _check_repeated(scored, columns)
    notes.append(
        "Each task has its own seeds: differences are computed within tasks and averaged; "
        "tasks are not counted as runs."
    )
    seeded, task_of = _seeds_by_task(scored)
    return TasksTogether(seeded, task_of, notes)


def _nothing_to_compare(kept: Cells, every: Cells, baseline: str | None) -> bool:
    """Return whether the kept configurations lack the baseline or a second configuration."""
    lacks_baseline = baseline is not None and baseline not in kept
    return lacks_baseline or len(kept) < min(2, len(every))


def _check_repeated(cells: Cells, columns: RunColumns) -> None:
    """Raise if every configuration has a single run per task."""
    if any(len(runs) > 1 for cell in cells.values() for runs in cell.values()):
        return
    raise ConfigError(
        "every configuration has one run per task, so noise cannot be estimated",
        ",".join(columns.task),
        "run at least 3 seeds of every task",
        code="one-seed",
    )


def _scored_on_all_tasks(cell: Mapping[str, Sequence[TrialRecord]]) -> bool:
    """Return whether a configuration has a successful run on every task."""
    return all(any(math.isfinite(trial.score) for trial in runs) for runs in cell.values())


def _seeds_by_task(cells: Cells) -> tuple[list[TrialRecord], dict[Hashable, str]]:
    """Return the trials with seeds that start with the task, and the task of each seed."""
    kept = []
    task_of: dict[Hashable, str] = {}
    for cell in cells.values():
        for task, runs in cell.items():
            for trial in runs:
                seed = f"{task} {trial.seed}"
                task_of[seed] = task
                kept.append(replace(trial, seed=seed))
    return kept, task_of


def _share_seeds(cell: Mapping[str, Sequence[TrialRecord]]) -> bool:
    """Return whether at least half of a configuration's seeds on the task with the fewest seeds ran
    on all tasks.
    """
    seeds = [{trial.seed for trial in runs} for runs in cell.values()]
    return len(set.intersection(*seeds)) >= _SHARED * min(map(len, seeds))


def _seed_means(cells: Cells, tasks: int) -> tuple[list[TrialRecord], list[str]]:
    """Return one trial per configuration and seed with the mean score over all tasks, and notes."""
    kept = []
    left_out = 0
    for number, cell in cells.items():
        by_seed: dict[str, list[TrialRecord]] = {}
        for runs in cell.values():
            for trial in runs:
                by_seed.setdefault(trial.seed, []).append(trial)
        for trials in by_seed.values():
            if len(trials) < tasks:
                left_out += len(trials)
                continue
            state = joint_state(trial.state for trial in trials)
            score = float(np.mean([trial.score for trial in trials]))
            first = trials[0]
            mean = replace(first, state=state, score=score, task="", curves={}, solved=None)
            kept.append(replace(mean, name=f"c{number}-s{first.seed}"))
    notes = [
        f"The score of a seed is its mean over {counted(tasks, 'task')}; tasks are not counted as "
        "runs."
    ]
    if left_out:
        runs_left_out = counted(left_out, "run")
        notes.append(f"Left out: {runs_left_out} of seeds that did not run on every task.")
    return kept, notes
