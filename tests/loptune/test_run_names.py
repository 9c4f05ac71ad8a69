import fcntl
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from loptune.errors import ConfigError, NameInUseError, StorageError
from loptune.run_names import CAMPAIGN, check_folder, lock_folder, lock_owner, run_path
from tests.paths import ROOT
from tests.refusals import refused

HOLD = """
import sys, time
from pathlib import Path
from loptune.run_names import lock_folder
with lock_folder(Path(sys.argv[1]), "sweep"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_held_folder_names_its_holder_and_is_free_after_sigkill(tmp_path):
    folder = tmp_path / "demo"
    assert lock_owner(folder) is None
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        name = f"process {process.pid} on {socket.gethostname()}"
        with (
            refused("name-held", NameInUseError, names=("demo", name)) as caught,
            lock_folder(folder, "sweep"),
        ):
            pass
        assert caught.value.exit_code == 5
        assert lock_owner(folder) == name
        process.kill()
        process.wait()
    assert lock_owner(folder) is None
    with lock_folder(folder):
        assert lock_owner(folder).startswith(f"process {os.getpid()} on ")


def test_a_holder_that_has_not_yet_written_its_name_is_one(tmp_path):
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert lock_owner(tmp_path) == "a process that has just started"
        with refused("name-held", NameInUseError), lock_folder(tmp_path):
            pass


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").touch()
    with refused("not-written", StorageError), lock_folder(tmp_path / "file/demo", "sweep"):
        pass


def test_a_folder_in_the_place_of_the_lock_is_named(tmp_path):
    lock = tmp_path / "lock"
    lock.mkdir()
    for code, use in (
        ("not-read", lock_owner),
        ("not-written", lambda folder: lock_folder(folder).__enter__()),
    ):
        with refused(code, StorageError, names=("Is a directory",)) as raised:
            use(tmp_path)
        assert raised.value.where.startswith(f"{lock},")
        assert "remove or rename the file or folder at that path" in raised.value.hint


def test_a_folder_is_held_although_somebody_looks_who_holds_it(tmp_path):
    with lock_folder(tmp_path):
        pass
    with (tmp_path / "lock").open() as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        end_of_look = threading.Timer(0.1, fcntl.flock, (look, fcntl.LOCK_UN))
        end_of_look.start()
        with lock_folder(tmp_path):
            end_of_look.join()
            assert lock_owner(tmp_path) is not None


def test_a_run_is_given_by_its_name_or_as_a_path(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    (runs / "ar").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert run_path("ar", runs) == runs / "ar"
    # or a name of the hub
    for path in ("runs/ar", str(runs / "ar"), "gpt2", "Qwen/Qwen2.5-7B", "../ar"):
        assert run_path(path, runs) == Path(path)
    Path("ar").mkdir()
    assert run_path("ar", runs) == Path("ar")


def test_our_own_folder_and_other_names_are_fine(tmp_path):
    check_folder(ROOT)
    (tmp_path / "trainer.py").touch()  # found by loptune/shadowing.py before it
    (tmp_path / "loptune").mkdir()  # without __init__.py it hides nothing
    check_folder(tmp_path)


@pytest.mark.parametrize("name", ["loptune.py", "loptune/__init__.py"])
def test_a_file_that_would_be_imported_instead_of_ours_is_named(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with refused("shadowed-package", ConfigError) as caught:
        check_folder(tmp_path)
    assert caught.value.where == str(tmp_path / name.removesuffix("/__init__.py"))


def test_a_command_finds_our_packages_first(tmp_path, monkeypatch):
    (tmp_path / "rewards.py").write_text("raise SystemExit('imported the wrong one')")
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    shown = subprocess.run(
        [sys.executable, "-m", "trainer", "presets", "base"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0 and "name_or_path" in shown.stdout


def test_a_campaign_in_use_is_tried_again_as_it_has_no_other_name(tmp_path):
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with refused("name-held", NameInUseError) as caught, lock_folder(tmp_path, CAMPAIGN):
            pass
    assert "--name" not in caught.value.hint


def test_a_folder_that_was_moved_away_is_not_made_anew(tmp_path):
    with (
        pytest.raises(StorageError, match="No such file"),
        lock_folder(tmp_path / "moved", create=False),
    ):
        pass
    assert not (tmp_path / "moved").exists()
