"""Compare the values of each parameter of a full grid, with the other parameters held equal."""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dashboards.pictures.differences import arm_cells, filled_columns
from dashboards.pictures.theme import Picture
from dashboards.results import Results
from dashboards.trial import TrialRecord, best_first, joint_state
from dashboards.words import number
from loptune.parameter_names import short_names, shown
from loptune.terminal.table import counted

_MOST_VALUES = 12
_Cells = dict[Any, dict[Hashable, dict[str, TrialRecord]]]  # value -> other values -> seed -> trial


def each_parameter(results: Results) -> Picture | None:
    """Compare the values of each parameter, averaged over the settings of the other parameters that
    ran with all of these values, as `sweep judge --by PARAMETER --task OTHERS` does.

    None unless two parameters were crossed, all trials have ended, and no score chose or stopped a
    trial. Also None with arms, with tasks that have their own seeds, or if the runs are compared
    with a number.
    """
    # for a table of runs, ``adaptive`` only means that the seeds are not fresh
    is_adaptive = results.adaptive and bool(results.name)
    if is_adaptive or results.arms or results.task_of or results.against is not None:
        return None
    if any(trial.state not in ("COMPLETE", "FAIL") for trial in results.trials):
        return None
    headings: list[str] = []
    rows: list[list[str]] = []
    averaged: list[str] = []
    for name in results.varied:
        cells = _cells(results, name)
        shared = set.intersection(*(set(of_value) for of_value in cells.values()))
        if not 2 <= len(cells) <= _MOST_VALUES or len(shared) < 2:
            continue
        alone = _alone(results, name, cells, shared)
        headings, of_name = arm_cells(alone)
        values = {str(index): value for index, value in enumerate(cells)}
        for row, arm in zip(of_name, alone.arm_table, strict=True):
            rows.append([*row, _at_its_best(results, cells[values[arm.configuration]], shared)])
        short = short_names(results.varied)[name]
        averaged.append(f"{short} over {counted(len(shared), 'setting')} of the others")
    if not rows:
        return None
    headings, rows = filled_columns([*headings, "best mean"], rows)
    headings[0] = "value"
    text = (
        "Each value is compared with the baseline's value of the same parameter on equal seeds, "
        f"at equal values of the other parameters, and averaged: {'; '.join(averaged)}. Intervals "
        "are corrected for the values of one parameter, not for the number of parameters. The last "
        "column was selected on these seeds, so it is biased upward."
    )
    return Picture("each", "Each parameter separately", text, table=(headings, rows))


def _cells(results: Results, name: str) -> _Cells:
    """Return the trials by the value of one parameter, the values of the others, and the seed."""
    others = [key for key in results.varied if key != name]
    cells: _Cells = {}
    for trial in results.trials:
        value = shown(trial.parameters.get(name))
        rest = tuple(shown(trial.parameters.get(key)) for key in others)
        cells.setdefault(value, {}).setdefault(rest, {})[trial.seed] = trial
    return cells


def _alone(results: Results, name: str, cells: _Cells, shared: set[Hashable]) -> Results:
    """Return results whose configurations are the values of one parameter: the score of a seed is
    its mean over the shared settings of the other parameters.
    """
    short = short_names(results.varied)[name]
    base = [trial for trial in results.trials if trial.configuration == results.baseline]
    base_value = shown(base[0].parameters.get(name)) if base else next(iter(cells))
    trials = []
    labels = {}
    baseline = "0"
    for index, (value, of_value) in enumerate(cells.items()):
        labels[str(index)] = f"{short}={value}"
        if value == base_value:
            baseline = str(index)
        trials += _averaged(str(index), [of_value[setting] for setting in shared], name, value)
    return replace(
        results,
        trials=tuple(trials),
        searched=(name,),
        kinds={name: "choice"},
        baseline=baseline,
        fresh=None,
        rounds=None,
        search_labels=labels,
        earlier_confirmations=0,
    )


def _averaged(
    index: str, settings: list[Mapping[str, TrialRecord]], name: str, value: str
) -> list[TrialRecord]:
    """Return a trial per seed that ran in all settings. The trial failed if the seed failed in any
    of these settings.
    """
    trials = []
    seeds = dict.fromkeys(seed for setting in settings for seed in setting)
    for seed in seeds:
        if not all(seed in setting for setting in settings):
            continue
        runs = [setting[seed] for setting in settings]
        state = joint_state(run.state for run in runs)
        trial = TrialRecord(f"{index}-s{seed}", index, seed, parameters={name: value}, state=state)
        if state == "COMPLETE":
            trial = replace(trial, score=float(np.mean([run.score for run in runs])))
        trials.append(trial)
    return trials


def _at_its_best(
    results: Results, of_value: Mapping[Hashable, Mapping[str, TrialRecord]], shared: set[Hashable]
) -> str:
    """Return the best mean score that a value of the parameter reaches in a shared setting, and
    that setting; empty if every shared setting has a run without a score.
    """
    means = {}
    for setting in of_value:
        runs = of_value[setting].values()
        if setting in shared and all(run.state == "COMPLETE" for run in runs):
            means[setting] = float(np.mean([run.score for run in runs]))
    if not means:
        return ""
    best = best_first(means, results.objective)[0]
    assert isinstance(best, tuple)
    return f"{number(means[best])} at {', '.join(best)}"
