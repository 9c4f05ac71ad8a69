import errno
import os
import subprocess
import sys

import pytest

from trainer.errors import ConfigError
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


@pytest.mark.parametrize(("rank", "local_rank", "printed"), [(0, 0, 1), (1, 1, 0), (8, 0, 1)])
def test_each_machine_prints_once_what_is_wrong_with_a_configuration(
    rank, local_rank, printed, monkeypatch, capsys
):
    def command():
        raise ConfigError("no such file", "space.yaml", "name another one")

    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("LOCAL_RANK", str(local_rank))
    assert run_main(command) == 2
    assert capsys.readouterr().err.count("error: no such file") == printed


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
