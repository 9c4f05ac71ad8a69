"""A sweep's folder as a table of runs, for `sweep judge`."""

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
from trainer.run_folder import RunFolder
from trainer.tracking.uploading import ATTEMPT

_BOOKKEEPING = ("time", "nonfinite", ATTEMPT)
_JUDGED_WINDOW = 3  # of `sweep judge`, if --window is not typed


def sweep_at(path: Path) -> SweepFolder | None:
    """Return the sweep that a path names, as ``runs/NAME`` or ``runs/NAME/trials``; None if it is
    not the folder of a sweep.
    """
    root = path.parent if path.name == "trials" else path
    folder = SweepFolder(root.parent.resolve(), root.resolve().name)
    return folder if folder.exists() and folder.event_log.is_file() else None


def table_of_sweep(folder: SweepFolder, score: str) -> pd.DataFrame:
    """Return one row per evaluation: trial, seed, state, the searched parameters and what the trial
    logged. A trial that logged nothing has one row. Window and direction of the sweep's objective
    are noted if it is the ``score``.

    Raises:
        StorageError: a record of the sweep is damaged.
    """
    sweep = open_sweep(folder.runs_dir, folder.name)
    results = read_results(sweep)
    rows: list[dict[str, Any]] = []
    for trial in results.trials:
        described = _described(trial, results.searched)
        logged = _logged(sweep, trial)
        rows += [{**line, **described} for line in logged] or [described]
    table = pd.DataFrame(rows, columns=None if rows else ["trial", "seed", "state"])
    objective = results.objective
    notes = [f"Read as a sweep of loptune: {folder.root}, {counted(len(results.trials), 'trial')}."]
    is_objective = score == objective.metric
    if is_objective and objective.window != _JUDGED_WINDOW:
        notes.append(
            f"The sweep's own score is the mean of the last {objective.window} evaluations of "
            f"{objective.metric}. Judge the same score with --window {objective.window}."
        )
    table.attrs[NOTES] = notes
    if is_objective:
        table.attrs[DIRECTION] = objective.mode
    return table


def _described(trial: TrialRecord, searched: tuple[str, ...]) -> dict[str, Any]:
    """Return the columns that are equal in all rows of a trial."""
    state = trial.state.lower() if trial.ended else "running"  # an interrupted one has not ended
    parameters = {key: trial.parameters.get(key) for key in searched}
    return {**parameters, "trial": trial.name, "seed": trial.seed, "state": state}


def _logged(sweep: SweepRecord, trial: TrialRecord) -> list[dict[str, Any]]:
    """Return the lines of a trial's record."""
    lines = []
    for record in read_records(RunFolder(sweep.folder.trial(trial.name)).metrics):
        lines.append({name: value for name, value in record.items() if name not in _BOOKKEEPING})
    return lines
