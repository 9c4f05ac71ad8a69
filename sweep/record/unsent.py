"""Sending what MLflow lacks of the trials, before anything is read from it."""

from sweep.record.folder import SweepFolder, command
from trainer.errors import StorageError
from trainer.tracking.shipping import has_unsent
from trainer.tracking.tracker import upload

NAMED = 5


def send_unsent(folder: SweepFolder, uri: str) -> StorageError | None:
    """Send what trials that have ended, or were stopped, could not send themselves. No driver may be at work.

    Returns:
        What keeps which trials from being sent; None once MLflow has everything.
    """
    waiting = [path for path in sorted((folder.root / "trials").glob("*")) if has_unsent(path)]
    left, problem = [], None
    for run_dir in waiting:
        away = problem is not None and problem.where == uri  # nobody waits for a dead server trial by trial
        try:
            if not away:
                upload(run_dir, uri)
                continue
        except StorageError as error:
            problem = error
        left.append(run_dir.name)
    if problem is None:
        return None
    names = ", ".join(left[:NAMED]) + (f" and {len(left) - NAMED} more" if len(left) > NAMED else "")
    return StorageError(
        f"MLflow lacks a part of the record of {names}: {problem.what}",
        problem.where,
        f"repair that, then {command('resume', folder)} sends it and writes the report",
    )
