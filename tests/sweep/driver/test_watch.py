"""What counts as a dead daemon of Ray's; the daemons themselves die in tests/faults/test_daemons.py."""

import socket
import subprocess
import sys

import psutil

from sweep.driver import watch
from sweep.trials.lifeline import listens


def test_a_busy_server_listens_and_a_dead_one_does_not() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()  # and never accepts or answers
        port = server.getsockname()[1]
        assert listens(f"127.0.0.1:{port}")
    assert not listens(f"127.0.0.1:{port}")


def test_a_process_that_was_killed_does_not_live_even_as_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = psutil.Process(child.pid)
    assert watch._lives(process)
    child.kill()
    while process.status() != psutil.STATUS_ZOMBIE:
        pass
    assert not watch._lives(process)
    child.communicate()
    assert not watch._lives(process)
