import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import textwrap

import pytest

from tests.paths import ROOT

WAITER = textwrap.dedent("""
    import pathlib, sys, time
    from trainer.commands.interrupt import graceful_stop
    asked = []
    with graceful_stop(lambda: asked.append(1)):
        print("ready", flush=True)
        while not asked:
            time.sleep(0.05)
    print("to go on: ...", flush=True)
    pathlib.Path(sys.argv[1]).write_text("saved")
""")


def test_a_closed_terminal_is_a_request_to_stop_and_no_error(tmp_path):
    """The terminal goes away as an SSH connection does: SIGHUP, and every later write to it fails."""
    controller, terminal = pty.openpty()
    saved = tmp_path / "saved"
    process = subprocess.Popen(
        [sys.executable, "-c", WAITER, str(saved)],
        cwd=ROOT,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
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
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)  # two would end it at once
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
