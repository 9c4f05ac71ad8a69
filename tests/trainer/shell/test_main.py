import errno
import os
import subprocess
import sys

import pytest

from trainer.shell.main import run_main

PROGRAM = (
    "from trainer.shell.main import run_main; raise SystemExit(run_main(lambda: print(1) or 0))"
)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full_is_named_and_not_the_working_folder(unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.stderr.splitlines()[:2] == [
        "error: cannot write the output: No space left on device",
        "where: /dev/full",
    ]
    assert done.returncode == 4


def test_a_limit_on_open_files_is_named(capsys):
    def command():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    assert run_main(command) == 3
    error = capsys.readouterr().err
    assert error.startswith("error: too many open files\n") and "next:  ulimit -n" in error


def test_a_disk_that_is_full_is_no_fault_of_the_output(capsys):
    def command():
        raise OSError(errno.ENOSPC, "No space left on device")

    assert run_main(command) == 4
    assert capsys.readouterr().err.startswith("error: cannot use the disk")
