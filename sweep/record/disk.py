"""Disk space of checkpoints: shrink the checkpoints of finished trials, and check the space for a
new trial.
"""

import logging
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from loptune.errors import StorageError
from loptune.files import format_bytes, free_bytes
from loptune.score import best_evaluation
from sweep.record.sweep_record import SweepRecord
from trainer.checkpoint.on_disk import keep_weights, steps_on_disk
from trainer.checkpoint.run_state import RunState
from trainer.config.tracking import CheckpointConfig
from trainer.run_folder import RunFolder

logger = logging.getLogger(__name__)


def shrink_ended(sweep: SweepRecord, shrunk: set[str], all_have_closed: bool = False) -> None:
    """Reduce each ended trial's checkpoints to the weights of the checkpoints that the trial keeps
    (``checkpoint.keep_last``, ``checkpoint.keep_best``), and add the trial to ``shrunk`` so that it
    is skipped next time.

    Ended trials are found in the event log, so a resumed sweep catches up. A failed trial may be
    retried and keeps everything. A trial that the scheduler stopped may still be writing a
    checkpoint, so its checkpoints are not reduced until no partial one is left or all processes
    have ended (``all_have_closed``).
    """
    if sweep.spec.trainer is None:
        return  # a command or function manages its own files
    settings = sweep.spec.trainer.base.checkpoint
    for trial in sweep.results:
        if trial.name in shrunk or trial.state == "FAIL":
            continue
        root = RunFolder(sweep.folder.trial(trial.name)).checkpoints
        has_closed = all_have_closed or trial.state == "COMPLETE"
        if has_closed or not any(root.glob(".step-*.*.partial")):
            shrunk.add(trial.name)
            _keep_last_and_best(root, settings)


def _keep_last_and_best(root: Path, settings: CheckpointConfig) -> None:
    try:
        steps = steps_on_disk(root)  # newest first
        if steps:
            newest = RunState.read(root / f"step-{steps[0]}")
            best = best_evaluation(newest.evaluations, steps)
            kept = set(steps[: settings.keep_last])
            if best is not None and settings.keep_best:
                kept.add(best[0])
            keep_weights(root, kept)
    except (OSError, ValueError, KeyError, TypeError) as error:  # a failure only costs disk space
        logger.warning("could not shrink the checkpoints in %s: %s", root, error)


class CheckpointSpace:
    """Compares the free disk space with the size of the checkpoints still to be written.

    A checkpoint is assumed to be as large as the largest one so far or the estimate from the model,
    whichever is larger. A trial briefly has one more checkpoint than it keeps, because the new
    checkpoint is complete before the oldest is removed.
    """

    def __init__(self, sweep: SweepRecord) -> None:
        spec = sweep.spec
        folder = sweep.folder
        self._folder = folder
        self._at_a_time = 0  # maximum number of checkpoints of one trial
        self._largest = 0  # bytes of a checkpoint
        kept = spec.program.checkpoints(spec.resources.gpus_per_trial > 0)
        if kept is not None:
            self._at_a_time = kept.kept + 1
            self._largest = kept.running_bytes or 0
        for trial in folder.trials.glob("*"):
            self._largest = max([self._largest, *checkpoint_sizes(trial)])

    def shortage(self, trial: str, running: Collection[str]) -> StorageError | None:
        """Return an error if there is not enough space for a trial in addition to the running
        trials; else None.
        """
        held: list[int] = []  # bytes of each trial's checkpoints
        for name in (trial, *running):
            sizes = checkpoint_sizes(self._folder.trial(name))
            held.append(sum(sizes))
            self._largest = max([self._largest, *sizes])
        per_trial = self._largest * self._at_a_time
        needed = sum(max(0, per_trial - size) for size in held)
        free = free_bytes(self._folder.root)
        if needed <= free:
            return None
        return StorageError(
            f"not enough disk space for the checkpoints of trial {trial}: it and "
            f"{len(running)} running trials will write {format_bytes(needed)}",
            f"{self._folder.root}, {format_bytes(free)} free",
            "free some space, then resume",
            code="no-room-for-checkpoints",
        )


def checkpoint_sizes(run_dir: Path) -> list[int]:
    """Return the size in bytes of each checkpoint of a trial; a checkpoint that is removed
    concurrently is skipped.
    """
    sizes = []
    for checkpoint in RunFolder(run_dir).checkpoints.glob("*step-*"):
        with suppress(FileNotFoundError):
            files = [path for path in checkpoint.rglob("*") if path.is_file()]
            sizes.append(sum(path.stat().st_size for path in files))
    return sizes
