import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import textwrap

import pytest

from loptune.terminal.interrupt import (
    defer_interrupt,
    graceful_stop,
    on_interrupt,
    shutdown_limit,
    shutdown_warning,
)
from tests.paths import ROOT

SIGNALS = (signal.SIGINT, signal.SIGTERM)

WAITER = textwrap.dedent("""
    import pathlib, sys, time
    from loptune.terminal.interrupt import graceful_stop
    asked = []
    with graceful_stop(lambda: asked.append(1)):
        print("ready", flush=True)
        while not asked:
            time.sleep(0.05)
    print("to go on: ...", flush=True)
    pathlib.Path(sys.argv[1]).write_text("saved")
""")


def own_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup


def test_a_closed_terminal_is_a_request_to_stop_and_no_error(tmp_path):
    """The terminal goes away as an SSH connection does: SIGHUP, and every later write to it
    fails.
    """
    controller, terminal = pty.openpty()
    saved = tmp_path / "saved"
    process = subprocess.Popen(
        [sys.executable, "-c", WAITER, str(saved)],
        cwd=ROOT,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=own_terminal,
    )
    os.close(terminal)
    assert os.read(controller, 100).startswith(b"ready")
    os.close(controller)  # the system sends SIGHUP to the terminal's session
    assert process.wait(timeout=20) == 0
    assert saved.read_text() == "saved"


def test_nohup_keeps_a_hangup_away(tmp_path):
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", WAITER, str(tmp_path / "saved")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)  # two would end it at once
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0


@pytest.mark.parametrize("first", SIGNALS)
def test_the_first_signal_asks_and_the_second_stops_at_once(first, capsys):
    asked = []
    with graceful_stop(lambda: asked.append("stop")):
        os.kill(os.getpid(), first)
        assert asked == ["stop"]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert asked == ["stop"]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_handlers_of_before_come_back_after_an_error():
    before = [signal.getsignal(number) for number in SIGNALS]
    received = []
    with pytest.raises(RuntimeError), on_interrupt(received.append):
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError
    assert received == [signal.SIGTERM]
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_ctrl_c_is_held_back_while_modules_are_imported():
    imported = []
    with pytest.raises(KeyboardInterrupt), defer_interrupt():
        signal.raise_signal(signal.SIGINT)
        imported.append("all")
    assert imported == ["all"]


@pytest.mark.parametrize(
    ("words", "variable", "limit"),
    [
        (["torchrun", "--nproc-per-node", "2"], None, 30),
        (["torchrun"], "120", 120),
        (["torchrun", "--shutdown-timeout", "900"], "120", 900),
        (["torchrun", "--shutdown_timeout=900"], None, 900),
    ],
)
def test_a_step_that_outlasts_the_launchers_limit_is_reported(monkeypatch, words, variable, limit):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert shutdown_limit() is None and shutdown_warning(1e9) is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr("psutil.Process.cmdline", lambda process: words)
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    if variable is not None:
        monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", variable)
    assert shutdown_limit() == limit
    assert shutdown_warning(limit / 2) is None
    assert f" {limit} s" in shutdown_warning(0.6 * limit)
