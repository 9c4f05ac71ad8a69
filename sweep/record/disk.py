"""Checkpoints on disk: trials that have ended are thinned, and a new trial needs room for
its own.
"""

import logging
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from sweep.record.sweep_record import SweepRecord
from sweep.search.history import TrialKey
from trainer.checkpoint.files import keep_weights, steps_on_disk
from trainer.checkpoint.run_state import RunState
from trainer.errors import StorageError
from trainer.evaluation.history import best_evaluation
from trainer.files import free_bytes, size_text
from trainer.run_folder import RunFolder

logger = logging.getLogger(__name__)


def thin_ended(sweep: SweepRecord, thinned: set[str], all_have_closed: bool = False) -> None:
    """Keep the weights of the last and the best checkpoint of each trial that has ended, and add it
    to those ``thinned``, which are not looked at again.

    The ledger says which have, so that a sweep that was killed in between does it when it goes on.
    One that failed may be tried again and keeps everything. A trial that the scheduler stopped may
    still be writing a checkpoint: it is left alone until none is unfinished, or all trials'
    processes are gone.
    """
    for configuration in sweep.configurations:
        for seed, result in configuration.results.items():
            trial = TrialKey(configuration.number, seed).name
            if trial in thinned or result.state == "FAIL":
                continue
            root = RunFolder(sweep.folder.trial(trial)).checkpoints
            has_closed = all_have_closed or result.state == "COMPLETE"
            if has_closed or not any(root.glob(".step-*.*.partial")):
                thinned.add(trial)
                _keep_last_and_best(root)


def _keep_last_and_best(root: Path) -> None:
    try:
        steps = steps_on_disk(root)
        for step in steps[:1]:
            best = best_evaluation(RunState.read(root / f"step-{step}").evaluations, steps)
            keep_weights(root, {best[0]} if best else set())
    except (OSError, ValueError, KeyError, TypeError) as error:  # space is lost, and nothing else
        logger.warning("the checkpoints in %s stay as they are: %s", root, error)


class CheckpointRoom:
    """Compares free space with what trials will still write.

    A checkpoint is taken to be as large as the largest of the sweep so far, or as its model lets
    expect. A trial holds those it keeps, and for a moment one more: a new one is whole before the
    oldest is removed.
    """

    def __init__(self, sweep: SweepRecord) -> None:
        spec = sweep.spec
        folder = sweep.folder
        kept = spec.program.checkpoints(spec.resources.gpus_per_trial > 0)
        self._folder = folder
        self._at_a_time = 0 if kept is None else kept.kept + 1
        trials = folder.trials
        sizes = [size for trial in trials.glob("*") for size in checkpoint_sizes(trial)]
        self._largest = max([*sizes, (kept.whole if kept else None) or 0])

    def lack(self, trial: str, running: Collection[str]) -> StorageError | None:
        """Return the lack of space for a trial beside those that run; None where there is room."""
        held = {name: checkpoint_sizes(self._folder.trial(name)) for name in (trial, *running)}
        self._largest = max([self._largest, *(size for sizes in held.values() for size in sizes)])
        whole = self._largest * self._at_a_time
        needed = sum(max(0, whole - sum(sizes)) for sizes in held.values())
        free = free_bytes(self._folder.root)
        if needed <= free:
            return None
        return StorageError(
            f"not enough disk space for the checkpoints of trial {trial}: with those of "
            f"{len(running)} running trials {size_text(needed)} will be written",
            f"{self._folder.root}, {size_text(free)} free",
            "free some space, then resume",
        )


def checkpoint_sizes(run_dir: Path) -> list[int]:
    """Return bytes of each checkpoint of a trial; one that is removed meanwhile counts for
    nothing.
    """
    sizes = []
    for checkpoint in RunFolder(run_dir).checkpoints.glob("*step-*"):
        with suppress(FileNotFoundError):
            sizes.append(
                sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
            )
    return sizes
