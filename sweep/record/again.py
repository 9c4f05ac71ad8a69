"""What `sweep resume` does over again where it is asked to."""

import time

from sweep.record.folder import SweepFolder
from sweep.record.summary import configurations
from sweep.search.history import RETRIED, TrialKey
from sweep.search.ledger import Ledger
from sweep.space.spec import SweepSpec
from trainer.checkpoint import newest_checkpoint, start_over, steps_on_disk
from trainer.errors import StorageError


def retry_failed(folder: SweepFolder) -> list[str]:
    """Take the failures of trials back in the ledger, so that they are issued again; returns their names.

    They go on from their newest checkpoint.
    """
    failed = [
        TrialKey(configuration.number, seed)
        for configuration in configurations(folder)
        for seed, result in configuration.results.items()
        if result.state == "FAIL"
    ]
    records = [
        {"event": RETRIED, "configuration": key.configuration, "seed": key.seed, "time": time.time()}
        for key in failed
    ]
    Ledger(folder.ledger).append(*records)
    return [key.name for key in failed]


def begin_damaged_again(spec: SweepSpec, folder: SweepFolder) -> list[str]:
    """Set the checkpoints of unfinished trials aside of which none is intact; returns the trials' names.

    They are trained from step 0; what there was of them lies in ``earlier-N`` of their folders.

    Raises:
        StorageError: a checkpoint may not be read.
    """
    begun = []
    for configuration in configurations(folder):
        for seed in spec.seeds:
            trial = TrialKey(configuration.number, seed).name
            if seed in configuration.results:
                continue
            checkpoints = folder.trial(trial) / "checkpoints"
            try:
                newest_checkpoint(checkpoints)
            except StorageError:
                if steps_on_disk(checkpoints):  # they cannot be read, which says nothing about them
                    raise
                start_over(folder.trial(trial))
                begun.append(trial)
    return begun
