"""Create private temporary folders, and remove folders that killed processes left behind.

A folder is locked while its process is alive. Error marks of ranks are files without a lock.
Scratch folders of sweeps have a separate lock: `sweep.driver.guard`.
"""

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "loptune-error-"  # prefix of a rank's error mark, see `loptune.terminal.main`
_FOLDER = "loptune-tmp-"
_OURS = re.compile(rf"({_FOLDER}|{MARK}).*|loptune-[a-z0-9_]{{8}}")
_SWEEPS = "owner"  # marks the scratch folder of a sweep, which `sweep clean` removes
# age at which files count as leftovers: no process takes this long to lock a new folder or to read
# a mark
_OLD_S = 3600.0


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Create a folder that only this user can read, and remove it at the end. Leftovers of killed
    processes are removed first. ``purpose`` is a part of the folder's name.
    """
    remove_leftovers()
    with tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{purpose}-") as name:
        lock = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


def remove_leftovers() -> list[Path]:
    """Remove this user's folders that no process has locked, and error marks, if they are older
    than an hour; return the removed paths.
    """
    removed = []
    for parent in {Path(tempfile.gettempdir()), Path("/tmp")}:
        for path in sorted(parent.glob("loptune-*")):
            with suppress(OSError):  # another process may remove it at the same time
                if _OURS.fullmatch(path.name) and _is_left(path):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    removed.append(path)
    return removed


def _is_left(path: Path) -> bool:
    """Return whether a path is an old file or folder of this user, and no process uses it.

    Raises:
        OSError: the path is locked, or has been removed.
    """
    status = path.lstat()
    if status.st_uid != os.getuid() or path.is_symlink():
        return False
    if time.time() - status.st_mtime < _OLD_S:
        return False
    if path.is_dir():
        if (path / _SWEEPS).exists() and (path / _SWEEPS).stat().st_size:
            return False
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
        return True
    return path.is_file()
