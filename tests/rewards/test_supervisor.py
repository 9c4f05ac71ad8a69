"""Processes that go on below a supervisor and end in different ways."""

import os
import subprocess
import sys

from tests.paths import ROOT
from tests.rewards.test_sandbox import wait_until_gone


def start(body):
    """A supervised program that runs ``body`` in the child; returns the supervisor and our end of
    its lifeline.
    """
    theirs, ours = os.pipe()
    code = (
        "import os, signal, time; from rewards.supervisor import supervise; "
        f"supervise({theirs})\n{body}"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], pass_fds=[theirs], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    os.close(theirs)
    return process, ours


def test_the_child_does_not_outlive_its_supervisor():
    process, lifeline = start("print(os.getpid(), flush=True); time.sleep(600)")
    child = int(process.stdout.readline())
    process.kill()
    process.wait(30)
    assert wait_until_gone({child}, 10) == set()
    os.close(lifeline)


def test_the_ends_of_pipes_that_the_child_closes_are_closed():
    # Only the child writes to stdout: the supervisor holds no copy that would keep the reader
    # waiting.
    process, lifeline = start("os.close(1); time.sleep(600)")
    assert process.stdout.read() == ""
    assert process.poll() is None
    process.kill()
    process.wait(30)
    os.close(lifeline)
