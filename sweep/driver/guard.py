"""Clean up after a killed driver: a guard process ends the sweep's processes and removes its
scratch folder.

The guard then prints the command that resumes the sweep. It is needed for two reasons. Ray ends an
orphaned worker only after the worker has started, and a worker that is starting tries to reach the
dead control server for half a minute. Ray's C++ code may also end the driver without running any
more Python. Run as a program: ``guard.py DRIVER_PID SWEEP_FOLDER SCRATCH LAST_WORDS``. It imports
nothing of the project, so it starts within a tenth of a second.
"""

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

import psutil

MARKER = "LOPTUNE_SWEEP"  # environment variable of every process of a running sweep
PREFIX = "loptune-"  # prefix of scratch folders
# file in a scratch folder with the path of the sweep's folder; locked while the driver lives
OWNER = "owner"
POLL_S = 0.2
_MAX_OWNER_BYTES = 8192
# maximum length of the parent path: Ray's socket paths below it are limited to 107 characters
_MAX_PARENT_LENGTH = 20
# consecutive empty scans before the guard exits: a process may start another just before it is
# killed
_EMPTY_SCANS = 3
# workers of a dead driver end within seconds, on a cluster within 6 to 10 s
_LEFTOVER_WAIT_S = 12.0


def sweep_processes(root: Path) -> list[psutil.Process]:
    """Return the processes on this machine with the marker of this sweep, except this process."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARKER) == str(root):
                processes.append(process)
    return processes


def end_leftovers(root: Path, wait_s: float = _LEFTOVER_WAIT_S) -> int:
    """Wait for the processes of a dead driver to end, then kill the rest, and return how many were
    killed.

    Call it while holding the sweep's lock, so that no live driver's processes are killed.
    """
    deadline = time.monotonic() + wait_s
    while (remaining := sweep_processes(root)) and time.monotonic() < deadline:
        time.sleep(0.3)
    for process in remaining:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(remaining, timeout=5)
    return len(remaining)


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """Create a private folder for Ray's and Tune's files; remove it at the end."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_scratch_parent()))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        owner = stack.enter_context((folder / OWNER).open("w", encoding="utf-8"))
        fcntl.flock(owner, fcntl.LOCK_EX)
        print(root, file=owner, flush=True)
        yield folder


def dead_scratch() -> Iterator[tuple[Path, Path]]:
    """Yield this user's scratch folders of dead drivers, each with its sweep's folder."""
    for owner in _scratch_parent().glob(f"{PREFIX}*/{OWNER}"):
        # skip folders of live drivers, and removed ones
        with suppress(OSError), _own_file(owner) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            root = file.readline(_MAX_OWNER_BYTES).strip()
            if root:
                yield owner.parent, Path(root)


def _own_file(path: Path) -> TextIO:
    """Open a regular file of this user in a folder of this user, without waiting.

    Other users can create files with such names in the temporary directory: a link must not be
    followed, and a named pipe must not block.

    Raises:
        OSError: the file is missing or is not a regular file, or another user owns it or its
            folder.
    """
    if path.parent.lstat().st_uid != os.getuid():
        raise PermissionError(f"{path.parent} belongs to another user")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
        os.close(descriptor)
        raise PermissionError(f"{path} is not a regular file of this user")
    return open(descriptor, encoding="utf-8")


def _scratch_parent() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= _MAX_PARENT_LENGTH else Path("/tmp")


@contextmanager
def guarded(root: Path, scratch: Path, message: str) -> Iterator[None]:
    """Run a guard during the block. If this process is killed, the guard ends every process with
    the sweep's marker, removes the scratch folder and prints ``message``.

    The guard has the marker too, and runs in its own session, so that signals to the terminal's
    process group do not reach it.
    """
    guard = subprocess.Popen(
        [sys.executable, "-P", __file__, str(os.getpid()), str(root), str(scratch), message],
        env={**os.environ, MARKER: str(root)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.kill()
        guard.wait()


def _watch(driver: int, root: Path, scratch: Path, message: str) -> None:
    while os.getppid() == driver:
        time.sleep(POLL_S)
    empty = 0
    while empty < _EMPTY_SCANS:
        remaining = sweep_processes(root)
        empty = 0 if remaining else empty + 1
        for process in remaining:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_S)
    shutil.rmtree(scratch, ignore_errors=True)
    with suppress(OSError):  # stderr may be closed
        print(message, file=sys.stderr)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
