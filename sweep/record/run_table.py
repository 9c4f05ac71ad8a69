"""A sweep's folder as a table of runs, for `sweep judge`."""

import shlex
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.sources.delimited import NOTES
from dashboards.sources.directions import DIRECTION
from dashboards.trial import TrialRecord
from loptune.files import read_records
from loptune.terminal.table import counted
from sweep.record.folder import SweepFolder
from sweep.record.results import read_results
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.space.scoring import axes
from sweep.space.spec import ObjectiveSpec
from trainer.run_folder import RunFolder
from trainer.tracking.uploading import ATTEMPT

_BOOKKEEPING = ("time", "nonfinite", ATTEMPT)
_JUDGED_WINDOW = 3  # default of --window in `sweep judge`


def sweep_at(path: Path) -> SweepFolder | None:
    """Return the sweep at a path such as ``runs/NAME`` or ``runs/NAME/trials``; None if the path is
    not the folder of a sweep.
    """
    root = path.parent if path.name == "trials" else path
    folder = SweepFolder(root.parent.resolve(), root.resolve().name)
    return folder if folder.exists() and folder.event_log.is_file() else None


def table_of_sweep(folder: SweepFolder, score: str) -> pd.DataFrame:
    """Return one row per evaluation: trial, seed, state, the searched parameters, the logged
    metrics and the amounts used so far. A trial that logged nothing has one row. If the ``score``
    is a metric of the sweep's objective, a note of the table lists the options with which `sweep
    judge` uses that objective.

    Raises:
        StorageError: a record of the sweep is damaged.
        ConfigError: its search space was edited and is no longer valid.
    """
    sweep = open_sweep(folder.runs_dir, folder.name)
    results = read_results(sweep)
    rows: list[dict[str, Any]] = []
    for trial in results.trials:
        described = _described(trial, results.searched)
        logged = _logged(sweep, trial)
        rows += [{**line, **described} for line in logged] or [described]
    table = pd.DataFrame(rows, columns=None if rows else ["trial", "seed", "state"])
    objective = sweep.spec.objective
    notes = [f"Read as a sweep of loptune: {folder.root}, {counted(len(results.trials), 'trial')}."]
    is_objective = score in objective.metrics
    options = _options(objective)
    if is_objective and options:
        notes.append(
            f"The sweep's own score is {objective.name}, {objective.place}. To judge by its "
            f"objective: {shlex.join(options)}"
        )
    table.attrs[NOTES] = notes
    if is_objective:
        table.attrs[DIRECTION] = objective.mode
    return table


def _options(objective: ObjectiveSpec) -> list[str]:
    """Return the options of `sweep judge` in which an objective differs from the defaults."""
    options = []
    if len(objective.metrics) > 1:
        options += ["--score", ",".join(objective.metrics)]
        combined = objective.combined
        if combined.kind == "weights":
            weights = [f"{name}={weight:g}" for name, weight in combined.weights.items()]
            options += ["--composite", ",".join(weights)]
        elif combined.kind != "mean":
            options += ["--composite", combined.kind]
    if objective.at is not None:
        options += ["--axis", objective.axis, "--at", f"{objective.at:g}"]
    elif objective.window != _JUDGED_WINDOW:
        options += ["--window", str(objective.window)]
    if objective.guards:
        options += ["--guard", ",".join(objective.guards)]
    return options


def _described(trial: TrialRecord, searched: tuple[str, ...]) -> dict[str, Any]:
    """Return the columns that are equal in all rows of a trial."""
    state = trial.state.lower() if trial.ended else "running"  # an interrupted trial has not ended
    parameters = {key: trial.parameters.get(key) for key in searched}
    return {**parameters, "trial": trial.name, "seed": trial.seed, "state": state}


def _logged(sweep: SweepRecord, trial: TrialRecord) -> list[dict[str, Any]]:
    """Return the lines of a trial's record, each with the amounts that it had used by then."""
    records = read_records(RunFolder(sweep.folder.trial(trial.name)).metrics)
    used = {}
    for name, axis in axes(sweep.spec).items():
        used[name] = axis.amounts(records)
    lines = []
    for record in records:
        line = {name: value for name, value in record.items() if name not in _BOOKKEEPING}
        for name, amounts in used.items():
            line.setdefault(name, amounts.get(record["step"]))
        lines.append(line)
    return lines
