"""Make standard output safe for any text: escape control characters, and characters that the
terminal's encoding cannot represent.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from loptune.errors import printable

_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")


class EscapedStream:
    """A stream that escapes control characters, except newlines, tabs and colors.

    Names of files, runs and columns are untrusted, and could move the cursor to overwrite earlier
    output. Output of Rich bypasses this stream; its text is escaped elsewhere.
    """

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write the escaped text; return the number of characters of the original."""
        parts = _COLOR.split(text)  # every second part is a color
        parts[::2] = map(printable, parts[::2])
        self.rich_proxied_file.write("".join(parts))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape everything that the block prints to standard output."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # reconfigure reads the stream's position, which fails for a file that became a pipe
            # in a fork
            with suppress(OSError):
                stream.reconfigure(errors="backslashreplace")
    before = sys.stdout
    if before is None:  # closed: print writes nothing
        yield
        return
    sys.stdout = EscapedStream(before)
    try:
        yield
    finally:
        sys.stdout = before
