"""Sweeps from Python: ``sweep run``, and the trials as a table."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from loptune.errors import INTERRUPTED
from loptune.extras import require
from loptune.run_names import lock_owner
from loptune.terminal.logs import set_up_logging
from loptune.terminal.waiting import waiting_for_output
from sweep.commands import start
from sweep.record.sweep_record import open_sweep
from sweep.record.trial_table import table_row


def run(
    space: str | Path, overrides: Sequence[str] = (), *, name: str, runs_dir: str | Path = "runs"
) -> pd.DataFrame:
    """Run a sweep as ``sweep run SPACE KEY=VALUE --name NAME`` does, and return `load_results`.

    Args:
        space: name of a built-in search space, or a YAML file.
        overrides: ``key=value``; keys of the trainer start with ``trainer.``.
        name: name of the sweep.
        runs_dir: folder of all runs, with the MLflow store.

    Raises:
        UserError: the sweep cannot start or continue.
        KeyboardInterrupt: the user stopped the sweep; ``sweep resume`` continues it.
    """
    require("ray", "sweep run")
    set_up_logging("normal")
    with waiting_for_output("working"):
        ended = start.run(str(space), overrides, name=name, runs_dir=Path(runs_dir))
    if ended.exit_code == INTERRUPTED:
        raise KeyboardInterrupt
    return load_results(name, runs_dir)


def load_results(name: str, runs_dir: str | Path = "runs") -> pd.DataFrame:
    """Return the trials of a sweep as a table, one row per trial.

    Returns:
        Columns ``trial``, ``configuration``, ``seed``, ``state`` (WAITING, RUNNING, COMPLETE,
        PRUNED, FAIL), ``step``, ``score`` (NaN if there is none), ``second`` (value of the second
        objective, or None), ``reason`` (of a failure), and one column for every searched key.
        An empty table without columns if no trial was proposed.

    Raises:
        MissingError: there is no such sweep.
        StorageError: its event log or search space is damaged or missing.
        ConfigError: the name is invalid, or the search space was edited and is no longer valid.
    """
    sweep = open_sweep(Path(runs_dir), name)
    is_running = lock_owner(sweep.folder.root) is not None
    rows = []
    for trial in sweep.trials(running=is_running):
        row = table_row(trial)
        parameters = row.pop("parameters")
        del row["total_steps"]
        rows.append({**row, **parameters})
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    return table.astype({"score": float})
