"""Trials that `sweep resume` begins again on demand: those that failed, and those without an intact checkpoint."""

import time

from sweep.record.sweep_record import SweepRecord
from sweep.search.history import RETRIED, TrialKey
from sweep.search.ledger import Ledger
from trainer.checkpoint.files import newest_checkpoint, start_over, steps_on_disk
from trainer.errors import StorageError


def retry_failed(sweep: SweepRecord) -> list[str]:
    """Take failures back in the ledger; returns the trials' names, which go on from their newest checkpoint."""
    failed = [
        TrialKey(configuration.number, seed)
        for configuration in sweep.configurations
        for seed, result in configuration.results.items()
        if result.state == "FAIL"
    ]
    records = [
        {"event": RETRIED, "configuration": key.configuration, "seed": key.seed, "time": time.time()}
        for key in failed
    ]
    Ledger(sweep.folder.ledger).append(*records)
    return [key.name for key in failed]


def begin_damaged_again(sweep: SweepRecord) -> list[str]:
    """Set the checkpoints of unfinished trials aside of which none is intact; returns the trials' names.

    They are trained from step 0; what there was of them lies in ``earlier-N`` of their folders.

    Raises:
        StorageError: a checkpoint may not be read.
    """
    begun = []
    for configuration in sweep.configurations:
        for seed in sweep.spec.seeds:
            trial = TrialKey(configuration.number, seed).name
            if seed in configuration.results:
                continue
            checkpoints = sweep.folder.trial(trial) / "checkpoints"
            try:
                newest_checkpoint(checkpoints)
            except StorageError:
                if steps_on_disk(checkpoints):  # they cannot be read, which says nothing about them
                    raise
                start_over(sweep.folder.trial(trial))
                begun.append(trial)
    return begun
