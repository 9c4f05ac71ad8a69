"""What is printed to a terminal breaks between words."""

import contextlib
import fcntl
import pty
import re
import struct
import sys
import termios

import pytest

from sweep.views.plan import print_wrapped
from sweep.views.progress import say
from trainer.shell.progress import Progress
from trainer.shell.table import print_columns, print_table
from trainer.shell.wrapping import wrap_terminals

TEXT = " ".join(f"{'word' * (1 + number % 7)}{number}" for number in range(40))
PRINTERS = {
    "print": lambda: print(TEXT),
    "table": lambda: print_table(["key", "meaning"], [["a", TEXT]]),
    "columns": lambda: print_columns([{"key": "a", "meaning": TEXT}]),
    "plan": lambda: print_wrapped("heading", TEXT),
    "sweep": lambda: say(TEXT),
    "run": lambda: Progress().resumed(TEXT, 1, 2),
}


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("printer", PRINTERS)
def test_no_word_is_broken(monkeypatch: pytest.MonkeyPatch, printer: str, width: int) -> None:
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, width, 0, 0))
    monkeypatch.setenv("COLUMNS", str(width))
    with open(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "__stdout__", stream)
        wrap_terminals()
        PRINTERS[printer]()
        sys.stdout.flush()
    shown = ""
    with open(controller, newline="") as seen, contextlib.suppress(OSError):  # which is a terminal's end of file
        for line in seen:
            shown += re.sub(r".*\r(?!\n)|\x1b\[[0-9;?]*\w|\r", "", line)  # without a bar that was painted over
    assert max(map(len, shown.split("\n"))) <= width
    assert TEXT in " ".join(shown.split())
