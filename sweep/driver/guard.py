"""A small process that ends the leftovers of a sweep's driver when it is killed, and prints how to go on.

Ray ends a worker whose node is gone only once that worker has started: one that is just starting tries for half a
minute to reach the dead control server. And where Ray's own code ends the driver, as when its node dies while it
connects, no line of Python runs any more. Run as a program: ``guard.py DRIVER_PID SWEEP_FOLDER LAST_WORDS``. It
imports nothing of the project, so that it is there within a tenth of a second.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

MARKER = "LOPTUNE_SWEEP"  # environment variable that every process of a running sweep carries
POLL_S = 0.2
_LOOKS = 3  # without finding anything: a process that is ended may just have started another
_LEFTOVER_WAIT_S = 12.0  # the workers of a dead driver end within seconds, those on a cluster within 6 to 10


def marked(root: Path) -> list[psutil.Process]:
    """Processes on this machine that carry the marker of the sweep in this folder, this one excepted."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARKER) == str(root):
                found.append(process)
    return found


def end_leftovers(root: Path, wait_s: float = _LEFTOVER_WAIT_S) -> int:
    """Wait for the processes of a dead driver to end, then kill the rest; returns how many were killed.

    Call it while holding the sweep: then no live driver's processes can be meant.
    """
    deadline = time.monotonic() + wait_s
    while (remaining := marked(root)) and time.monotonic() < deadline:
        time.sleep(0.3)
    for process in remaining:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(remaining, timeout=5)
    return len(remaining)


@contextmanager
def guarded(root: Path, last_words: str) -> Iterator[None]:
    """Should this process be killed inside the block, end all that carries the sweep's marker, then print a text.

    The guard carries the marker itself, and a session of its own keeps signals to a terminal's group from it.
    """
    guard = subprocess.Popen(
        [sys.executable, "-P", __file__, str(os.getpid()), str(root), last_words],
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


def _watch(driver: int, root: Path, last_words: str) -> None:
    while os.getppid() == driver:
        time.sleep(POLL_S)
    empty = 0
    while empty < _LOOKS:
        remaining = marked(root)
        empty = 0 if remaining else empty + 1
        for process in remaining:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_S)
    with contextlib.suppress(OSError):  # nobody may be there to read it
        print(last_words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    _watch(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
