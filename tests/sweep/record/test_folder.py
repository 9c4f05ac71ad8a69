import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sweep.record.folder import all_sweeps, command, existing_sweep, hold, holder, request_stop, sweep_folder
from trainer.errors import ConfigError, MissingError, NameHeldError, StorageError

HOLD = """
import sys, time
from pathlib import Path
from sweep.record.folder import hold, sweep_folder
with hold(sweep_folder(Path(sys.argv[1]), "demo")):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("name", ["../x", "", "a b", "n" * 300])
def test_a_name_that_is_no_plain_name_is_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a usable name"):
        sweep_folder(tmp_path / "runs", name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_sweep_names_those_that_exist(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "space.lock.yaml").write_text("name: x")
    with pytest.raises(MissingError) as caught:
        existing_sweep(tmp_path, "three")
    assert caught.value.hint == "sweeps here: one, two"
    assert [found.name for found in all_sweeps(tmp_path)] == ["one", "two"]


def test_a_sweep_without_its_space_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "events.jsonl").touch()
    with pytest.raises(StorageError, match="lost its search space"):
        existing_sweep(tmp_path, "demo")


def test_a_held_sweep_names_its_holder_and_is_free_after_sigkill(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path, "demo")
    assert holder(folder) is None
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(NameHeldError) as caught, hold(folder):
            pass
        assert f"process {process.pid} on {socket.gethostname()}" in str(caught.value)
        assert caught.value.exit_code == 5
        found = holder(folder)
        assert found is not None
        assert found.pid == process.pid
        process.kill()
        process.wait()
    assert holder(folder) is None
    with hold(folder):
        assert json.loads(folder.lock.read_text())["pid"] == os.getpid()


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = sweep_folder(tmp_path / "file", "demo")
    with pytest.raises(StorageError, match="cannot write the sweep's folder"), hold(folder):
        pass


def test_a_stop_request_on_a_vanished_folder_is_no_error(tmp_path: Path) -> None:
    request_stop(sweep_folder(tmp_path, "demo"))
    assert list(tmp_path.iterdir()) == []


def test_a_command_is_ready_to_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sweep"])
    assert command("resume", sweep_folder(Path("runs"), "demo")) == "sweep resume demo"
    assert command("resume", sweep_folder(Path("my runs"), "demo")) == "sweep resume demo --runs-dir 'my runs'"
    monkeypatch.setattr(sys, "argv", ["/x/sweep/__main__.py"])
    elsewhere = tmp_path.parent / "elsewhere"
    assert command("ui", sweep_folder(elsewhere, "demo")) == f"python -m sweep ui demo --runs-dir {elsewhere}"
