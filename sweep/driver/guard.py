"""What a sweep's driver leaves when it is killed: processes and a scratch folder, and the guard
that removes both.

The guard is a small process, which then prints how to go on. Ray ends a worker whose node is gone
only once that worker has started: one that is just starting tries for half a minute to reach the
dead control server. And where Ray's own code ends the driver, as when its node dies while it
connects, no line of Python runs any more. Run as a program: ``guard.py DRIVER_PID SWEEP_FOLDER
SCRATCH LAST_WORDS``. It imports nothing of the project, so that it is there within a tenth of a
second.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

MARKER = "LOPTUNE_SWEEP"  # environment variable that every process of a running sweep carries
PREFIX = "loptune-"  # of scratch folders
OWNER = "owner"  # file of a scratch folder: names the sweep's folder; locked while its driver lives
POLL_S = 0.2
# characters of the folder of scratch folders: a socket of Ray's below it may have no more than 107
_LONGEST = 20
_LOOKS = 3  # without finding anything: a process that is ended may just have started another
# the workers of a dead driver end within seconds, those on a cluster within 6 to 10
_LEFTOVER_WAIT_S = 12.0


def marked(root: Path) -> list[psutil.Process]:
    """Return processes on this machine that carry the marker of the sweep in this folder, this one
    excepted.
    """
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARKER) == str(root):
                processes.append(process)
    return processes


def end_leftovers(root: Path, wait_s: float = _LEFTOVER_WAIT_S) -> int:
    """Wait for the processes of a dead driver to end, then kill the rest; returns how many were
    killed.

    Call it while holding the sweep: then no live driver's processes can be meant.
    """
    deadline = time.monotonic() + wait_s
    while (remaining := marked(root)) and time.monotonic() < deadline:
        time.sleep(0.3)
    for process in remaining:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(remaining, timeout=5)
    return len(remaining)


@contextmanager
def scratch_folder(root: Path) -> Iterator[Path]:
    """Make a folder that this user alone can enter, for a sweep's files of Ray and Tune; remove it
    at the end.
    """
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_scratch_parent()))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        owner = stack.enter_context((folder / OWNER).open("w"))
        fcntl.flock(owner, fcntl.LOCK_EX)
        print(root, file=owner, flush=True)
        yield folder


def dead_scratch() -> Iterator[tuple[Path, Path]]:
    """Find this user's scratch folders whose drivers are dead, each with the folder of its
    sweep.
    """
    for owner in _scratch_parent().glob(f"{PREFIX}*/{OWNER}"):
        # another user's, removed, or of a live driver
        with suppress(OSError), owner.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            root = file.readline().strip()
            if root and os.fstat(file.fileno()).st_uid == os.getuid():
                yield owner.parent, Path(root)


def _scratch_parent() -> Path:
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) <= _LONGEST else Path("/tmp")


@contextmanager
def guarded(root: Path, scratch: Path, last_words: str) -> Iterator[None]:
    """Guard the block: should this process be killed inside it, end all that carries the sweep's
    marker, then print a text.

    The scratch folder goes with them. The guard carries the marker itself, and a session of its own
    keeps signals to a terminal's group from it.
    """
    guard = subprocess.Popen(
        [sys.executable, "-P", __file__, str(os.getpid()), str(root), str(scratch), last_words],
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


def _watch(driver: int, root: Path, scratch: Path, last_words: str) -> None:
    while os.getppid() == driver:
        time.sleep(POLL_S)
    empty = 0
    while empty < _LOOKS:
        remaining = marked(root)
        empty = 0 if remaining else empty + 1
        for process in remaining:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_S)
    shutil.rmtree(scratch, ignore_errors=True)
    with suppress(OSError):  # nobody may be there to read it
        print(last_words, file=sys.stderr)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
