"""Temporary folders that do not outlive their process, however it ends."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

_PREFIX = "loptune-"
_OWNER = "owner.lock"  # held by the process that made the folder


@contextmanager
def scratch_folder(purpose: str) -> Iterator[Path]:
    """A temporary folder, removed at the end; those of processes that were killed are removed first.

    Raises:
        OSError: the temporary directory cannot be written.
    """
    root = Path(tempfile.gettempdir())
    with ExitStack() as held:
        with (root / f"{_PREFIX}{os.getuid()}.lock").open("w") as one_at_a_time:
            fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
            _remove_abandoned(root)
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-", dir=root))
            owner = held.enter_context((folder / _OWNER).open("w"))
            _lock(owner)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(root: Path) -> None:
    for lock in root.glob(f"{_PREFIX}*/{_OWNER}"):
        try:
            with lock.open("r+") as owner:
                abandoned = _lock(owner)
        except OSError:  # another user's
            continue
        if abandoned:
            shutil.rmtree(lock.parent, ignore_errors=True)


def _lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
