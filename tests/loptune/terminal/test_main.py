import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from loptune.errors import MissingError
from loptune.terminal.main import run_main

PROGRAM = (
    "from loptune.terminal.main import run_main; raise SystemExit(run_main(lambda: print(1) or 0))"
)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full_is_named_and_not_the_working_folder(unbuffered):
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONUNBUFFERED": unbuffered},
        )
    assert done.stderr.splitlines()[:2] == [
        "error: cannot write the output: No space left on device [output-not-written]",
        "where: /dev/full",
    ]
    assert done.returncode == 4


@pytest.mark.parametrize("torchrun", [True, False])
@pytest.mark.parametrize("ranks", [(0, 1), (1, 0), (1, 2)])
def test_only_the_first_failing_rank_prints_an_error(
    ranks, torchrun, monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    printed = []
    for rank, text in ((ranks[0], "no such file"), (ranks[1], "no such file"), (2, "no GPU")):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        if torchrun:
            (tmp_path / str(rank)).mkdir(exist_ok=True)
            file = tmp_path / str(rank) / "error.json"
            monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))

        def command(text=text):
            raise MissingError(text, "space.yaml", "name another one")

        assert run_main(command) == 3
        printed.append(capsys.readouterr().err.partition("\n")[0])
    assert printed == ["error: no such file", "", "error: no GPU"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_failure(closed):
    program = PROGRAM.replace("print(1) or 0", "print(1) or __import__('sys').stdout.isatty()")
    done = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {closed}', sys.executable, program],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_limit_on_open_files_is_named(capsys):
    def command():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    assert run_main(command) == 3
    error = capsys.readouterr().err
    assert "[too-many-files]\n" in error and "next:  ulimit -n" in error


def test_a_disk_that_is_full_is_no_fault_of_the_output(capsys):
    def command():
        raise OSError(errno.ENOSPC, "No space left on device")

    assert run_main(command) == 4
    assert capsys.readouterr().err.startswith("error: cannot use the disk")


@pytest.mark.parametrize("mode", [None, 0o777], ids=["free", "taken by another user"])
def test_a_user_without_a_home_folder_gets_a_private_one(mode, monkeypatch, tmp_path):
    expanduser = os.path.expanduser
    monkeypatch.setattr(
        "os.path.expanduser", lambda path: expanduser(path) if "HOME" in os.environ else path
    )
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", "restored afterwards")
    monkeypatch.delenv("HOME")
    usual = tmp_path / f"loptune-home-{os.getuid()}"
    if mode is not None:
        usual.mkdir()
        usual.chmod(mode)
    assert run_main(lambda: 0) == 0
    home = Path(os.environ["HOME"])
    assert home.parent == tmp_path and stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (home == usual) == (mode is None)


def test_a_home_folder_stays(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_main(lambda: 0) == 0
    assert os.environ["HOME"] == str(tmp_path)
