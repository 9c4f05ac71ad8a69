"""A line that moves in a terminal while nothing else can be shown, such as during long imports."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from trainer.shell.main import rank

_FRAMES = "|/-\\"
_FRAME_S = 0.1
_SILENT_S = 0.3  # shorter waits show nothing
_CLEAR = "\r\x1b[K"


@contextmanager
def waiting(text: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show ``text`` with the seconds so far until the block ends.

    Nothing is written outside of a terminal, and by ranks other than 0.
    """
    stream = stream or sys.stderr
    if rank() > 0 or not stream.isatty():
        yield
        return
    ended = threading.Event()
    line = threading.Thread(target=_move, args=(text, stream, ended), daemon=True)
    line.start()
    try:
        yield
    finally:
        ended.set()
        line.join()


def _move(text: str, stream: TextIO, ended: threading.Event) -> None:
    start = time.monotonic()
    if ended.wait(_SILENT_S):
        return
    count = 0
    while True:
        seconds = time.monotonic() - start
        stream.write(f"{_CLEAR}{_FRAMES[count % len(_FRAMES)]} {text} ({seconds:.0f} s)")
        stream.flush()
        count += 1
        if ended.wait(_FRAME_S):
            break
    stream.write(_CLEAR)
    stream.flush()
