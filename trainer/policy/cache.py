"""Cache folders that are created once per machine and then only read."""

import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path

from filelock import FileLock, Timeout

from loptune.errors import StorageError

VARIABLE = "LOPTUNE_CACHE"
_held: list[FileLock] = []  # locks of `exclusive_folder`, held until the process exits


def cache_folder() -> Path:
    """Return ``$LOPTUNE_CACHE``, or ``~/.cache/loptune``.

    Raises:
        StorageError: this user has no home folder, as in a container with an unknown user id.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    try:
        return Path.home() / ".cache" / "loptune"
    except RuntimeError:
        raise StorageError(
            "this user has no home folder for the cache",
            f"HOME, {VARIABLE}",
            f"set {VARIABLE} to a writable folder",
            code="no-home",
        ) from None


def exclusive_folder(folder: Path) -> Path:
    """Return a numbered subfolder that is locked for this process until it exits."""
    numbers = count(1)
    while True:
        candidate = folder / str(next(numbers))
        candidate.mkdir(parents=True, exist_ok=True)
        lock = FileLock(candidate / "lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            continue
        _held.append(lock)
        return candidate


def ensure_folder(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return the folder and create it on first use.

    Concurrent processes wait for the first one. An interrupted ``make`` leaves no folder. ``make``
    receives an empty folder to fill. The folder name must identify all inputs (it is the cache
    key).
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
            try:
                make(temporary)
                temporary.chmod(0o755)  # mkdtemp creates mode 0700
                temporary.rename(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    return folder
