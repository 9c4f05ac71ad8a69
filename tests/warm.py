"""Processes that need not import torch, transformers and Ray again: they are forked from one server
that has, which all processes of pytest share.

A forked process has its own working folder, environment, output, session and exit status. Tests of
imports, of processes that end others, or of their command lines start an interpreter instead.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.paths import ROOT

FOLDER = "LOPTUNE_TESTS_WARM"  # the variable that names a folder of this run of pytest
PYTHON = sys.executable
CLIENT = ROOT / "tests" / "warm_client.py"
SERVER = ROOT / "tests" / "warm_server.py"


def warm(*words: object) -> list[str]:
    """Return the command that carries out ``python WORDS``, without the time for its imports.

    Where tests may see a GPU it starts an interpreter: a GPU in use does not survive a fork.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        return [PYTHON, *map(str, words)]
    server = str(_running_server())
    return [PYTHON, "-I", "-S", str(CLIENT), server, *map(str, words)]


def warm_programs() -> Path:
    """Return a folder for a PATH, with ``python``, ``trainer`` and ``sweep`` as warm programs."""
    lines = {"python": warm(), "trainer": warm("-m", "trainer"), "sweep": warm("-m", "sweep")}
    with shared_folder() as folder:
        programs = folder / "programs"
        if not programs.exists():
            programs.mkdir()
            for name, line in lines.items():
                program = programs / name
                program.write_text(f'#!/bin/sh\nexec {" ".join(line)} "$@"\n')
                program.chmod(0o755)
    return programs


@contextmanager
def warm_interpreters() -> Iterator[None]:
    """In this block, warm interpreters stand for ``sys.executable``, also for torchrun's ranks."""
    python = str(warm_programs() / "python")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)
        patch.setenv("PYTHON_EXEC", python)
        yield


def make_folder() -> None:
    """Make the folder for the server of this process and of those that it starts, if there is
    none.
    """
    if FOLDER not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="warm-of-tests-"))
        (folder / "owner").write_text(str(os.getpid()))
        os.environ[FOLDER] = str(folder)


def remove_folder() -> None:
    """Remove the folder that this process has made; the server ends with the process."""
    folder = Path(os.environ[FOLDER])
    if (folder / "owner").read_text() == str(os.getpid()):
        shutil.rmtree(folder)
        del os.environ[FOLDER]


@contextmanager
def shared_folder() -> Iterator[Path]:
    """The folder that all processes of this run of pytest share, while no other of them is here."""
    folder = Path(os.environ[FOLDER])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def _running_server() -> Path:
    """Return the server's socket; the first call of all processes starts the server."""
    with shared_folder() as folder:
        path = folder / "socket"
        if not path.exists():
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            with (folder / "log").open("w") as log:
                server = subprocess.Popen(
                    [PYTHON, str(SERVER), str(path), (folder / "owner").read_text()],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            while not path.exists():
                if server.poll() is not None:
                    raise RuntimeError((folder / "log").read_text())
                time.sleep(0.02)
    return path
