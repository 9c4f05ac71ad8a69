"""Fencing tokens for trials: if two processes run the same trial, only the newest attempt may
write.

A node that loses its connection keeps training for a while and may still reach the shared folder
after the trial was restarted elsewhere. The sweep's driver therefore numbers the attempts. Each
attempt stores its number in the trial's folder, and every write to the folder or to MLflow first
checks that no newer attempt exists.
"""

from dataclasses import dataclass
from pathlib import Path

from loptune.errors import StorageError, first_line
from loptune.files import storage_error, write_atomically
from trainer.run_folder import RunFolder


class SupersededError(StorageError):
    """A newer attempt of the trial has started."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run. A run outside of a sweep has number 0."""

    run_dir: Path
    number: int = 0

    def check(self) -> None:
        """Check that no newer attempt has started.

        Raises:
            SupersededError: a newer attempt has started.
            StorageError: the number of the newest attempt cannot be read.
        """
        if self.number and (newest := newest_attempt(self.run_dir)) > self.number:
            raise SupersededError(
                f"a newer attempt ({newest}) of {self.run_dir.name} runs elsewhere",
                str(RunFolder(self.run_dir).attempt),
                f"nothing to do: attempt {self.number} stops here",
                code="newer-attempt",
            )


def newest_attempt(run_dir: Path) -> int:
    """Return the number of the newest attempt, or 0 if there is none.

    Raises:
        StorageError: the file is unreadable or not a number.
    """
    path = RunFolder(run_dir).attempt
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return 0
    except (ValueError, OSError) as error:
        raise StorageError(
            f"the number of the trial's newest attempt cannot be read: {first_line(error)}",
            str(path),
            "once no process of the trial runs anywhere, remove the file, then resume",
            code="attempt-unreadable",
        ) from error


def begin_attempt(run_dir: Path, number: int) -> None:
    """Fence off attempts with lower numbers, and remove their failure note. Call before reading
    anything they wrote.

    Raises:
        SupersededError: a newer attempt has started.
        StorageError: the number cannot be read or written.
    """
    try:
        Attempt(run_dir, number).check()
        # not parents=True: do not recreate the folder of a deleted sweep
        run_dir.parent.mkdir(exist_ok=True)
        run_dir.mkdir(exist_ok=True)
        RunFolder(run_dir).failure.unlink(missing_ok=True)
        write_atomically(RunFolder(run_dir).attempt, str(number))
    except OSError as error:
        raise storage_error("start a trial", run_dir, error) from error
