"""Standard output that no text can harm: control characters are escaped, and so is what the
terminal's encoding does not have.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from loptune.errors import printable

_COLOR = re.compile(r"(\x1b\[[0-9;]*m)")


class EscapedStream:
    """A stream that escapes control characters but for line ends, tabs and colors.

    Names of files, runs and columns come from others, and could move the cursor over what was
    printed before. Rich, whose texts are escaped where they are made, writes past it.
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
    """Escape what the block prints."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # it asks for the position, which a file that became a pipe in a fork does not have
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
