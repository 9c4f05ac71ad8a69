"""Python functions that train a run like ``trainer run`` and load its metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from trainer.commands.runs import RunSummary, summary
from trainer.commands.start import Start, existing_run, run_name, start_run
from trainer.files import read_records
from trainer.run_folder import RunFolder
from trainer.shell.logs import set_up_if_unset


def train(
    spec: str | Path,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    name: str | None = None,
    runs_dir: str | Path = "runs",
    resume: bool = False,
    accept_changes: bool = False,
) -> RunSummary:
    """Train a run, like ``trainer run SPEC KEY=VALUE --name NAME``.

    Args:
        spec: preset, ``PRESET:VARIANT`` or YAML file.
        overrides: dotted keys and values, or ``key=value`` strings.
        name: name of the run, whose folder is ``runs_dir/name``; default: the spec and the time.
        runs_dir: folder of all runs, with the MLflow store.
        resume: whether to resume the run of this name.
        accept_changes: whether to resume even if data or reward files have changed.

    Returns:
        A summary whose ``state`` is done, stopped (by a signal) or failed (diverged). With several
        ranks use rank 0's: the others may return before the record is complete.

    Raises:
        UserError: the run cannot start or continue.
    """
    set_up_if_unset()
    start = Start(
        spec=str(spec),
        overrides=overrides,
        runs_dir=Path(runs_dir),
        name=name,
        resume=resume,
        accept_changes=accept_changes,
    )
    start = replace(start, name=run_name(start))
    start_run(start)
    return summary(Path(runs_dir) / str(start.name))


def load_metrics(name: str, runs_dir: str | Path = "runs") -> pd.DataFrame:
    """Return the metrics of a run as a DataFrame with one row per training step or evaluation.

    ``trainer metrics`` describes the columns.

    Raises:
        MissingError: there is no such run.
    """
    return pd.DataFrame(read_records(RunFolder(existing_run(Path(runs_dir), name)).metrics))
