"""Show an animated line in a terminal while nothing else is printed, as during imports."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from loptune.terminal.lasting_output import is_terminal
from loptune.terminal.main import rank

_FRAMES = "|/-\\"
_FRAME_S = 0.1
_SILENT_S = 0.3  # shorter waits show nothing
_CLEAR = "\r\x1b[K"


@contextmanager
def waiting(text: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show ``text`` with the elapsed seconds until the block ends.

    Nothing is written outside of a terminal, or by ranks other than 0.
    """
    stream = stream or sys.stderr
    if rank() > 0 or not is_terminal(stream):
        yield
        return
    end = _moving(text, stream)
    try:
        yield
    finally:
        end()


@contextmanager
def waiting_for_output(text: str) -> Iterator[None]:
    """Show ``text`` with the elapsed seconds until a command prints for the first time, or ends.

    Nothing is written outside of a terminal, or by ranks other than 0.
    """
    stdout, stderr = sys.stdout, sys.stderr
    if rank() > 0 or not is_terminal(stderr):
        yield
        return
    end = _moving(text, stderr)

    def first_output() -> None:
        end()
        for name, stream in (("stdout", stdout), ("stderr", stderr)):
            if isinstance(getattr(sys, name), _Output):
                setattr(sys, name, stream)

    # Keep a reference until the block ends: `print` borrows sys.stdout, and would crash if the
    # first write freed the stream.
    replaced = (_Output(stdout, first_output), _Output(stderr, first_output))
    sys.stdout, sys.stderr = replaced
    try:
        yield
    finally:
        first_output()


class _Output:
    """A stream that calls ``before`` before each write."""

    def __init__(self, stream: TextIO, before: Callable[[], None]) -> None:
        self._stream = stream
        self._before = before

    def write(self, text: str) -> int:
        """Write the text."""
        self._before()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _moving(text: str, stream: TextIO) -> Callable[[], None]:
    """Start the animated line; return a function that ends it and may be called repeatedly."""
    ended = threading.Event()
    line = threading.Thread(target=_move, args=(text, stream, ended), daemon=True)
    line.start()

    def end() -> None:
        ended.set()
        if line.is_alive():
            line.join()

    return end


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
