import fcntl
import os
import threading
from pathlib import Path

import pytest

from trainer.commands.run_folder import hold, holder, raise_held, run_path
from trainer.errors import NameHeldError, StorageError


def test_a_held_folder_names_its_holder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert holder(folder) is None
    with hold(folder):
        found = holder(folder)
        assert found is not None
        assert found.pid == os.getpid()
        with pytest.raises(NameHeldError, match=f"run run is run by process {os.getpid()} on ") as caught:
            raise_held(folder)
        assert caught.value.exit_code == 5
        with pytest.raises(NameHeldError), hold(folder):
            pass
    assert holder(folder) is None


def test_a_folder_is_held_although_somebody_looks_who_holds_it(tmp_path: Path) -> None:
    with hold(tmp_path):
        pass
    with (tmp_path / "lock").open() as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        end_of_look = threading.Timer(0.1, fcntl.flock, (look, fcntl.LOCK_UN))
        end_of_look.start()
        with hold(tmp_path):
            end_of_look.join()
            assert holder(tmp_path) is not None


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write the run's folder"), hold(tmp_path / "file" / "run"):
        pass


def test_a_run_is_given_by_its_name_or_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    (runs / "ar").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert run_path("ar", runs) == runs / "ar"
    for path in ("runs/ar", str(runs / "ar"), "gpt2", "Qwen/Qwen2.5-7B", "../ar"):  # or a name of the hub
        assert run_path(path, runs) == Path(path)
    Path("ar").mkdir()
    assert run_path("ar", runs) == Path("ar")
