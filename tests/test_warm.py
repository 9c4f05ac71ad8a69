"""A warm process is what the command would have started: output, folder, environment, status."""

import os
import signal
import subprocess

import psutil
import pytest

from tests.sweep.harness import wait_until
from tests.warm import warm

pytestmark = pytest.mark.slow

PROGRAM = """
import json, os, sys, time
try:
    print(json.dumps([sys.argv[1:], os.getcwd(), os.environ["GREETING"], os.getpid()]), flush=True)
    if sys.argv[1] == "wait":
        time.sleep(600)
except KeyboardInterrupt:
    sys.exit(130)
if sys.argv[1] == "die":
    os.kill(os.getpid(), 9)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def start(tmp_path):
    """Start the program with a word; its first line."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def start(word):
        process = subprocess.Popen(
            warm(script, word),
            cwd=tmp_path,
            env={**os.environ, "GREETING": "good morning"},
            stdout=subprocess.PIPE,
            text=True,
        )
        return process, eval(process.stdout.readline())

    return start


@pytest.mark.parametrize(("word", "status"), [("0", 0), ("3", 3), ("die", -signal.SIGKILL)])
def test_a_process_is_where_and_ends_as_it_should(start, word, status, tmp_path):
    process, said = start(word)
    assert said[:3] == [[word], str(tmp_path), "good morning"]
    assert process.wait(60) == status


def test_signals_arrive_and_a_killed_client_leaves_nothing(start):
    process, _ = start("wait")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    process, said = start("wait")
    process.kill()
    wait_until(lambda: not psutil.pid_exists(said[3]), 60)


def test_modules_are_there_and_errors_are_shown(tmp_path):
    code = "import sys\nprint('torch' in sys.modules, __name__)\nraise ValueError('no such luck')\n"
    (tmp_path / "a_module.py").write_text(code)
    done = subprocess.run(warm("-m", "a_module"), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "True __main__\n")
    assert done.stderr.splitlines()[-1] == "ValueError: no such luck"
