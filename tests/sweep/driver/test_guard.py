import os
import signal
import subprocess
import sys
import tempfile

import psutil
import pytest

from loptune.run_names import lock_folder
from sweep.driver.guard import MARKER, dead_scratch, guarded, scratch_folder, sweep_processes
from sweep.record.folder import sweep_folder
from tests.paths import ROOT
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.harness import wait_until

# A driver with a guard and a child that ignores requests to end.
DRIVER = """
import os, subprocess, sys, time
from pathlib import Path
from sweep.driver.guard import MARKER, guarded, scratch_folder
root = Path(sys.argv[1])
ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
child = f"{ignore}; print(flush=True); time.sleep(60)"
with scratch_folder(root) as scratch, guarded(root, scratch, "go on with: sweep resume demo"):
    started = subprocess.Popen(
        [sys.executable, "-c", child], env={**os.environ, MARKER: str(root)}, stdout=subprocess.PIPE
    )
    started.stdout.readline()
    print("ready", flush=True)
    time.sleep(0 if sys.argv[2] == "end" else 60)
"""


@pytest.fixture(autouse=True)
def scratch_of_this_test(tmp_path, monkeypatch):  # pytest makes its own folder before
    """Scratch folders apart: each driver of another test that starts removes the dead ones that it
    sees.
    """
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield


def start(root, how="stay"):
    command = [sys.executable, "-c", DRIVER, str(root), how]
    pipe = subprocess.PIPE
    driver = subprocess.Popen(
        command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    assert driver.stdout.readline() == "ready\n"
    return driver


def guards(root):
    return [
        process
        for process in sweep_processes(root)
        if "guard.py" in " ".join(command_line(process))
    ]


def command_line(process):
    """Read a process's arguments; one that has just ended has none."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def test_what_a_killed_driver_leaves_is_ended_and_nothing_else(tmp_path):
    root = tmp_path / "demo"
    other = tmp_path / "other"
    sleep = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with (
        start(root) as driver,
        subprocess.Popen(
            sleep, env={**os.environ, MARKER: str(other)}, stdout=subprocess.PIPE
        ) as theirs,
    ):
        theirs.stdout.readline()  # until then it may not have its environment
        assert len(sweep_processes(root)) == 2  # the child and the guard
        driver.kill()
        wait_until(lambda: not sweep_processes(root), timeout=20)
        assert scratch_of(root) == []
        assert [process.pid for process in sweep_processes(other)] == [theirs.pid]
        theirs.kill()


def test_signals_for_the_drivers_group_do_not_end_the_guard(tmp_path):
    root = tmp_path / "demo"
    with start(root) as driver:
        psutil.Process(driver.pid).suspend()  # or it would end its guard by itself
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.killpg(driver.pid, number)
        assert len(guards(root)) == 1
        driver.kill()
    wait_until(lambda: not sweep_processes(root), timeout=20)


@pytest.mark.parametrize("reader", [True, False])
def test_the_last_words_of_a_killed_driver_come_when_all_has_ended(tmp_path, reader):
    root = tmp_path / "demo"
    with start(root) as driver:
        if not reader:
            driver.stderr.close()
        driver.kill()
        if reader:
            assert driver.stderr.readline() == "go on with: sweep resume demo\n"
            assert not any(
                "SIG_IGN" in " ".join(command_line(process)) for process in sweep_processes(root)
            )
    wait_until(lambda: not sweep_processes(root), timeout=20)


def test_an_ending_driver_ends_its_guard_and_nothing_else(tmp_path):
    root = tmp_path / "demo"
    with start(root, "end") as driver:
        assert driver.wait(timeout=30) == 0
        assert guards(root) == []
        (child,) = sweep_processes(root)
        child.kill()
        assert driver.stderr.read() == ""


def test_the_guard_is_there_at_once(tmp_path):
    with guarded(tmp_path, tmp_path / "scratch", ""):
        # the kernel shows a program's environment a moment late
        wait_until(lambda: len(guards(tmp_path)) == 1)
    assert sweep_processes(tmp_path) == []


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_name_in_the_temporary_directory_that_is_no_file_of_ours_is_skipped(tmp_path, kind):
    with scratch_folder(tmp_path) as real:
        planted = real.parent / "loptune-planted"
        planted.mkdir()
        if kind == "pipe":
            os.mkfifo(planted / "owner")
        elif kind == "folder":
            (planted / "owner").mkdir()
        else:
            (planted / "owner").symlink_to(tmp_path / "elsewhere")
            (tmp_path / "elsewhere").write_text(f"{tmp_path}\n")
        assert planted not in [scratch for scratch, _ in dead_scratch()]


def scratch_of(root):
    return [scratch for scratch, owner in dead_scratch() if owner == root]


def test_without_its_guard_a_dead_driver_leaves_what_sweep_clean_removes(tmp_path, typed):
    dead = tmp_path / "dead"
    living = tmp_path / "living"
    with start(dead) as driver, scratch_folder(living) as kept:
        assert kept.stat().st_mode & 0o777 == 0o700
        assert scratch_of(dead) == []
        guards(dead)[0].kill()
        driver.kill()
        driver.wait()
        wait_until(lambda: not guards(dead) and len(scratch_of(dead)) == 1, timeout=20)
        (scratch,) = scratch_of(dead)
        (scratch / "large").write_bytes(bytes(2_000_000))
        out = typed("sweep clean")
        assert f"freed 2.0 MB: {scratch}, of {dead}; processes ended: 1\n" in out
        assert scratch_of(dead) == sweep_processes(dead) == []
        assert kept.is_dir()
    assert not kept.exists()


def test_sweep_clean_removes_what_a_dead_driver_wrote_for_a_cluster(tmp_path, typed):
    write_sweep(tmp_path)
    folder = sweep_folder(tmp_path, "demo")
    folder.credentials.write_text("{}")
    with lock_folder(folder.root):
        typed("sweep clean")
    assert folder.credentials.exists()
    assert f"{folder.credentials}\n" in typed("sweep clean")
    assert not folder.credentials.exists()
