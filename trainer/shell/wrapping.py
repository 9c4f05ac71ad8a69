"""Lines broken between words where a terminal would break them inside one."""

import os
import re
import sys
import textwrap
from typing import Any, TextIO

PLAIN_WIDTH = 100  # where there is no terminal
_HEAD = re.compile(r" *(?:[\w /-]{1,16}?(?= {2})|\w+:)? *")  # what further lines are indented by


def wrapped(text: str, width: int) -> str:
    """The text with every line broken between words; a word that is longer than the width stays whole."""
    heads = ((line, _HEAD.match(line)) for line in text.split("\n"))
    return "\n".join(fill(line, width, len(head[0]) if head else 0) for line, head in heads)


def fill(line: str, width: int, indent: int) -> str:
    """One line as several, those after the first indented unless that takes half of the width."""
    if len(line) <= width:
        return line
    further = " " * (indent if indent <= width // 2 else 4)
    return textwrap.fill(line, width, subsequent_indent=further, break_long_words=False, break_on_hyphens=False)


def text_width(stream: TextIO | None = None) -> int:
    """Columns of the terminal that a stream goes to, `PLAIN_WIDTH` without one."""
    try:
        return os.get_terminal_size((stream or sys.__stdout__ or sys.stdout).fileno()).columns or PLAIN_WIDTH
    except (OSError, ValueError):
        return PLAIN_WIDTH


def wrap_terminals() -> None:
    """Let what is printed to a terminal be broken between words."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream.isatty() and not isinstance(stream, _Wrapped):
            setattr(sys, name, _Wrapped(stream))


class _Wrapped:
    """A terminal's stream; what moves its cursor or colours it passes as it is."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        plain = "\x1b" not in text and "\r" not in text
        self._stream.write(wrapped(text, text_width(self._stream)) if plain else text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
