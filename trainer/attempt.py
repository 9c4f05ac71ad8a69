"""Attempts of a trial: of two processes that both take a trial for theirs, the newest attempt's
alone may write.

A node that is cut off trains on until it notices, and may still reach the shared folder, while the
trial has begun again elsewhere. So the sweep's driver numbers the attempts, each begins with its
number in a file of the trial's folder, and whatever writes there or to MLflow asks first whether
its own is the newest: a fencing token.
"""

from dataclasses import dataclass
from pathlib import Path

from trainer.errors import StorageError, first_line
from trainer.files import storage_error, write_atomically
from trainer.run_folder import RunFolder


class SupersededError(StorageError):
    """A newer attempt of the trial has begun."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run; 0 is the only one at a run that no sweep has begun."""

    run_dir: Path
    number: int = 0

    def check(self) -> None:
        """Raise a SupersededError if a newer attempt has begun."""
        if self.number and (newest := newest_attempt(self.run_dir)) > self.number:
            raise SupersededError(
                f"attempt {newest} of {self.run_dir.name} has started elsewhere",
                str(RunFolder(self.run_dir).attempt),
                f"nothing to do: attempt {self.number} ends",
            )


def newest_attempt(run_dir: Path) -> int:
    """Read the number of the newest attempt; 0 before the first.

    Raises:
        StorageError: the file holds no number, or cannot be read.
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
        ) from error


def begin_attempt(run_dir: Path, number: int) -> None:
    """Shut out attempts with lower numbers, before anything of this one reads what they have
    written.

    Raises:
        SupersededError: a newer attempt has begun.
        StorageError: the number cannot be written.
    """
    try:
        Attempt(run_dir, number).check()
        # not the folders above: a sweep that has vanished is not made anew
        run_dir.parent.mkdir(exist_ok=True)
        run_dir.mkdir(exist_ok=True)
        write_atomically(RunFolder(run_dir).attempt, str(number))
    except OSError as error:
        raise storage_error("begin a trial", run_dir, error) from error
