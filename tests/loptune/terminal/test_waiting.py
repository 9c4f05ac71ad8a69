import contextlib
import io
import os
import pty
import subprocess
import sys
import threading

import pytest

from loptune.terminal import waiting as module
from loptune.terminal.waiting import waiting, waiting_for_output
from tests.paths import ROOT


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and sets ``moved`` at its first frame."""

    def __init__(self):
        super().__init__()
        self.moved = threading.Event()

    def isatty(self):
        return True

    def write(self, text):
        self.moved.set()
        return super().write(text)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(module, "_SILENT_S", 0.0)
    monkeypatch.setattr(module, "_FRAME_S", 0.001)


def test_a_terminal_sees_a_line_move_and_then_nothing_of_it():
    stream = Terminal()
    with waiting("loading libraries", stream):
        assert stream.moved.wait(30)
    written = stream.getvalue()
    assert "loading libraries (0 s)" in written
    assert written.endswith("\r\x1b[K") and "\n" not in written


def test_it_ends_with_the_block_that_fails():
    stream = Terminal()
    before = threading.active_count()
    with pytest.raises(KeyError), waiting("loading", stream):
        raise KeyError
    assert threading.active_count() == before


def test_a_file_and_other_ranks_see_nothing(monkeypatch):
    file = io.StringIO()
    with waiting("loading", file):
        pass
    monkeypatch.setenv("RANK", "1")
    stream = Terminal()
    with waiting("loading", stream):
        pass
    assert file.getvalue() == stream.getvalue() == ""


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_the_first_output_of_a_command_ends_its_line(monkeypatch, name):
    terminals = {"stdout": Terminal(), "stderr": Terminal()}
    for stream, terminal in terminals.items():
        monkeypatch.setattr(sys, stream, terminal)
    with waiting_for_output("working"):
        assert terminals["stderr"].moved.wait(30)
        print("a result", file=getattr(sys, name))
        silent = threading.active_count()
        assert sys.stdout is terminals["stdout"] and sys.stderr is terminals["stderr"]
        print("more")
    assert threading.active_count() == silent
    moved, _, rest = terminals["stderr"].getvalue().rpartition("\r\x1b[K")
    assert "working (0 s)" in moved
    assert rest == ("a result\n" if name == "stderr" else "")
    assert terminals["stdout"].getvalue().endswith("more\n")


def test_a_command_that_prints_nothing_leaves_the_streams(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    stdout = sys.stdout
    with pytest.raises(KeyError), waiting_for_output("working"):
        raise KeyError
    assert (sys.stdout, sys.stderr) == (stdout, terminal)


def test_a_pipe_is_not_written_to_by_a_waiting_command(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with waiting_for_output("working"):
        assert sys.stderr is file
    assert file.getvalue() == ""


def test_the_first_print_in_a_terminal_ends_well():
    """`print` borrows sys.stdout: a stream freed by its own first write crashed the process."""
    code = (
        "import sys, time\n"
        "from loptune.terminal.waiting import waiting_for_output\n"
        "with waiting_for_output('working'):\n"
        "    time.sleep(0.5)\n"
        "    print('first', 'line', flush=True)\n"
        "    print('second')\n"
    )
    ours, terminal = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=terminal, stdout=terminal, stderr=terminal, cwd=ROOT
    )
    os.close(terminal)
    written = b""
    with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
        while part := os.read(ours, 4096):
            written += part
    assert child.wait() == 0
    assert b"working" in written and written.endswith(b"first line\r\nsecond\r\n")
