"""Options of `sweep resume`: retry failed trials, and restart trials without an intact
checkpoint.
"""

import time
from collections.abc import Callable

from dashboards.trial import TrialRecord
from loptune.errors import StorageError
from loptune.files import Record
from sweep.record.sweep_record import SweepRecord
from sweep.search.event_log import EventLog
from sweep.search.history import RETRIED, TrialKey
from trainer.checkpoint.on_disk import check_complete, newest_checkpoint, start_over, steps_on_disk
from trainer.run_folder import RunFolder


def retry_failed(
    sweep: SweepRecord, may_succeed: Callable[[TrialRecord], bool] = lambda trial: True
) -> list[str]:
    """Mark failed trials for a retry in the event log, and return their names. They resume from
    their newest checkpoints.

    Args:
        sweep: the sweep.
        may_succeed: returns whether a failed trial is retried.
    """
    failed: list[str] = []
    records: list[Record] = []
    for configuration in sweep.configurations:
        if configuration.retired:
            continue
        for seed, result in configuration.results.items():
            if result.state == "FAIL" and may_succeed(result):
                failed.append(result.name)
                records.append(
                    {
                        "event": RETRIED,
                        "configuration": configuration.number,
                        "seed": seed,
                        "time": time.time(),
                    }
                )
    if records:  # without an event log, no trial has failed
        EventLog(sweep.folder.event_log, create=False).append(*records)
    return failed


def check_checkpoints(sweep: SweepRecord) -> None:
    """Raise if a trial would silently restart from step 0.

    Raises:
        StorageError: a trial's checkpoints or metrics are missing.
    """
    for trial in _unfinished(sweep):
        _check_trial(sweep, trial)


def restart_damaged(sweep: SweepRecord) -> list[str]:
    """Move aside the files of unfinished trials without an intact checkpoint or record, and return
    the trials' names.

    They restart from step 0; the old files are in ``earlier-N`` of the trial's folder.

    Raises:
        StorageError: a checkpoint cannot be read.
    """
    damaged = [trial for trial in _unfinished(sweep) if _has_no_checkpoint(sweep, trial)]
    for trial in damaged:
        start_over(sweep.folder.trial(trial))
    return damaged


def _unfinished(sweep: SweepRecord) -> list[str]:
    """Return the names of the proposed trials without a result."""
    trials = []
    for configuration in sweep.configurations:
        for seed in configuration.open_seeds(sweep.spec.seeds):
            trials.append(TrialKey(configuration.number, seed).name)
    return trials


def _check_trial(sweep: SweepRecord, trial: str) -> None:
    kept = sweep.spec.program.checkpoints(on_gpu=False)
    if kept is not None:
        # the first checkpoint appears in the folder one step after its writing has started
        first_expected_step = kept.every_steps + 2
        check_complete(
            sweep.folder.trial(trial), first_expected_step, sweep.command("resume", "--start-over")
        )


def _has_no_checkpoint(sweep: SweepRecord, trial: str) -> bool:
    """Return whether a trial cannot continue, because its checkpoints or its metrics are missing.

    Raises:
        StorageError: the files exist but cannot be read, so they may be intact.
    """
    folder = RunFolder(sweep.folder.trial(trial))
    try:
        newest_checkpoint(folder.checkpoints)
        _check_trial(sweep, trial)
    except StorageError:
        are_there = steps_on_disk(folder.checkpoints) and folder.metrics.is_file()
        if are_there:
            raise
        return True
    return False
