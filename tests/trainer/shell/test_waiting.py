import io
import threading

import pytest

from trainer.shell import waiting as module
from trainer.shell.waiting import waiting


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
