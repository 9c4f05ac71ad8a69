"""Keep failing output from stopping a run: the caller may have replaced ``sys.stdout`` with any
object, and the reader of a pipe may exit early.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from loptune.errors import first_line

_logger = logging.getLogger(__name__)

_FAILURES = (OSError, ValueError)  # ValueError: the stream was closed


def is_terminal(stream: Any) -> bool:
    """Return whether the stream is a terminal; False if it is None, closed, or an object without
    ``isatty``.
    """
    isatty = getattr(stream, "isatty", None)
    try:
        return isatty is not None and bool(isatty())
    except _FAILURES:
        return False


class LastingStream:
    """A stream whose writes never fail. Text is dropped if the target cannot be written.

    Args:
        target: any object with ``write``; None drops everything.
        name: name of the target in the warning after its first failure.
        failed: names of the targets that have failed, shared by several streams.
    """

    def __init__(self, target: Any, name: str, failed: set[str]) -> None:
        self._target = target
        self._name = name
        self._failed = failed
        # Rich writes to this attribute of a stream, if it exists, and so bypasses `EscapedStream`
        inner = getattr(target, "rich_proxied_file", None)
        self.rich_proxied_file = self if inner is None else LastingStream(inner, name, failed)

    @property
    def encoding(self) -> str:
        """The target's encoding, UTF-8 if it has none."""
        return getattr(self._target, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write the text; characters that the target's encoding cannot represent are escaped."""
        write = getattr(self._target, "write", None)
        if write is not None:
            try:
                write(text)
            except UnicodeEncodeError:
                known = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
                with self._survives():
                    write(known)
            except _FAILURES as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Flush the target, if it can be flushed."""
        flush = getattr(self._target, "flush", None)
        if flush is not None:
            with self._survives():
                flush()

    def isatty(self) -> bool:
        """Return whether the target is a terminal."""
        return is_terminal(self._target)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    @contextlib.contextmanager
    def _survives(self) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        if isinstance(error, BrokenPipeError):
            # Buffered text would raise at every later flush, including the one at exit.
            with contextlib.suppress(*_FAILURES, AttributeError):
                descriptor = self._target.fileno()
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
        if self._name not in self._failed:
            self._failed.add(self._name)
            _logger.warning(
                "warning: %s can no longer be written: %s; the run continues without it",
                self._name,
                first_line(error),
            )


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Let the block print even if ``sys.stdout`` and ``sys.stderr`` are unusable or fail later."""
    before = sys.stdout, sys.stderr
    failed: set[str] = set()
    lasting = (
        LastingStream(sys.stdout, "standard output", failed),
        LastingStream(sys.stderr, "standard error", failed),
    )
    sys.stdout, sys.stderr = lasting
    try:
        yield
    finally:
        # code in the block may have replaced them
        if sys.stdout is lasting[0]:
            sys.stdout = before[0]
        if sys.stderr is lasting[1]:
            sys.stderr = before[1]
