"""Python functions that train a run like ``trainer run`` and load its metrics."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from loptune.errors import StorageError
from loptune.files import read_records
from loptune.terminal.logs import set_up_if_unset
from loptune.terminal.main import world_size
from trainer.commands.runs import RunSummary, summary
from trainer.commands.start import Start, existing_run, run_name, start_run
from trainer.run_folder import RunFolder

_SUMMARY_LIMIT_S = 60  # limit for rank 0 to close its record after training
_summaries = itertools.count()  # numbers the calls of `train` in this process, for unique keys


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
        accept_changes: whether to resume even if data, reward or rule files have changed.

    Returns:
        A summary whose ``state`` is done, stopped (by a signal) or failed (diverged), the same on
        every rank.

    Raises:
        UserError: the run cannot start or continue, or rank 0 has failed.
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
    if world_size() == 1:
        return summary(Path(runs_dir) / str(start.name))
    return _summary_of_rank_0(Path(runs_dir) / str(start.name))


def _summary_of_rank_0(folder: Path) -> RunSummary:
    """Return rank 0's summary on every rank. Only rank 0 knows when the record is complete, and its
    default name may differ, because it contains the time.

    Rank 0 never waits for the other ranks: they may have been interrupted.

    Raises:
        StorageError: rank 0 did not finish in time; raised on the other ranks.
    """
    import torch  # takes seconds to import

    distributed = torch.distributed
    if not distributed.is_initialized():  # the run was already complete, so nothing was started
        return summary(folder)
    store = distributed.distributed_c10d._get_default_store()
    key = f"loptune/summary/{next(_summaries)}"
    if distributed.get_rank() == 0:
        of_run = summary(folder)
        store.set(key, json.dumps(asdict(of_run)))
        return of_run
    try:
        store.wait([key], timedelta(seconds=_SUMMARY_LIMIT_S))
    except RuntimeError as error:
        raise StorageError(
            f"rank 0 did not finish the run's record within {_SUMMARY_LIMIT_S} s",
            str(folder),
            "look for the error of rank 0",
            code="no-summary",
        ) from error
    return RunSummary(**json.loads(store.get(key)))


def load_metrics(name: str, runs_dir: str | Path = "runs") -> pd.DataFrame:
    """Return the metrics of a run as a DataFrame with one row per training step or evaluation.

    ``trainer metrics`` describes the columns.

    Raises:
        MissingError: there is no such run.
        StorageError: the record of the metrics is damaged or cannot be read.
    """
    return pd.DataFrame(read_records(RunFolder(existing_run(Path(runs_dir), name)).metrics))
