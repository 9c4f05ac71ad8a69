"""Work goes on whatever becomes of its output."""

import io
import subprocess
import sys

import pytest

from loptune.terminal.lasting_output import LastingStream, is_terminal, lasting_output
from tests.paths import ROOT

WRITER = """
import sys
from loptune.terminal.lasting_output import lasting_output
from loptune.terminal.logs import set_up_logging
from loptune.terminal.main import run_main
from loptune.terminal.progress_lines import Progress

def command():
    set_up_logging("normal")
    with lasting_output():
        progress = Progress()
        for step in range(20000):
            progress.note(f"line {step}")
        progress.close()
        print("the end", flush=True)
    open(sys.argv[1], "w").write("saved")
    return 0

raise SystemExit(run_main(command))
"""


class OnlyWrites:
    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


class Gone(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self):
        raise BrokenPipeError(32, "Broken pipe")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("target", [None, OnlyWrites(), Gone(), closed()])
def test_any_object_may_stand_in_for_the_standard_streams(target, monkeypatch):
    monkeypatch.setattr("sys.stdout", target)
    monkeypatch.setattr("sys.stderr", target)
    with lasting_output():
        print("ä line", flush=True)
        print("a line", file=sys.stderr, flush=True)
        assert not sys.stdout.isatty() and sys.stdout.encoding
    assert sys.stdout is target and sys.stderr is target
    assert not is_terminal(target)
    if isinstance(target, OnlyWrites):
        assert target.text == "ä line\na line\n"


def test_letters_that_the_encoding_lacks_are_escaped():
    target = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert LastingStream(target, "stdout", set()).write("法 1") == 3
    target.flush()
    assert target.buffer.getvalue() == b"\\u6cd5 1"


def test_the_loss_is_reported_once(caplog):
    stream = LastingStream(Gone(), "standard output", set())
    for _ in range(3):
        print("a line", file=stream, flush=True)
    assert [record.args[0] for record in caplog.records] == ["standard output"]


@pytest.mark.parametrize("both", [False, True])
def test_the_reader_of_a_pipe_leaves_in_mid_run(both, tmp_path):
    saved = tmp_path / "saved"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(saved)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if both else subprocess.PIPE,
    )
    assert process.stdout.readline() == b"line 0\n"
    process.stdout.close()
    reported = b"" if both else process.stderr.read()
    assert process.wait(timeout=60) == 0 and saved.read_text() == "saved"
    assert (reported.count(b"standard output") == 1) != both
