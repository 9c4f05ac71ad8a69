"""Sweeps from Python: what ``sweep run`` does, and its trials as a table."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from sweep.cli import call
from sweep.record.folder import existing_sweep, holder, read_spec
from sweep.record.summary import trial_rows
from trainer.errors import INTERRUPTED


def run(
    space: str | Path,
    overrides: Sequence[str] = (),
    *,
    name: str,
    runs_dir: str | Path = "runs",
    shrink: bool = False,
) -> pd.DataFrame:
    """Run a sweep as ``sweep run SPACE KEY=VALUE --name NAME`` does, and return `load_results`.

    Args:
        space: name of a published space, or a YAML file.
        overrides: ``key=value``; keys of the trainer begin with ``trainer.``.
        name: of the sweep.
        runs_dir: folder of all runs, with the MLflow store.
        shrink: small enough for any CPU.

    Raises:
        UserError: whatever keeps the sweep from starting or going on.
        KeyboardInterrupt: it was stopped; ``sweep resume`` goes on.
    """
    options = ["--name", name, "--runs-dir", str(runs_dir), *(["--shrink"] if shrink else [])]
    if call(["run", str(space), *overrides, *options]) == INTERRUPTED:
        raise KeyboardInterrupt
    return load_results(name, runs_dir)


def load_results(name: str, runs_dir: str | Path = "runs") -> pd.DataFrame:
    """The trials of a sweep, a row each.

    Returns:
        columns ``trial``, ``configuration``, ``seed``, ``state`` (WAITING, RUNNING, COMPLETE, PRUNED, FAIL),
        ``step``, ``score`` (NaN without one), ``reason`` (of a failure), and one for every searched trainer key.

    Raises:
        MissingError: there is no such sweep.
    """
    folder = existing_sweep(Path(runs_dir), name)
    rows = trial_rows(read_spec(folder), folder, running=holder(folder) is not None)
    columns = ("trial", "configuration", "seed", "state", "step", "score", "reason")
    table = pd.DataFrame([{**{key: getattr(row, key) for key in columns}, **row.parameters} for row in rows])
    return table.astype({"score": float}) if len(table) else table
