import subprocess
import sys

import pytest

from loptune.errors import StorageError
from tests.refusals import refused
from trainer.doctor import _models
from trainer.policy.cache import cache_folder, ensure_folder, exclusive_folder
from trainer.rollouts.vllm.guard import server_token


def test_without_a_home_the_cache_needs_its_variable(tmp_path, monkeypatch):
    """Of a container that runs as an unknown user: pathlib cannot tell the home folder."""
    monkeypatch.delenv("LOPTUNE_CACHE", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with refused("no-home", StorageError, names=["LOPTUNE_CACHE"]):
        cache_folder()
    monkeypatch.setenv("LOPTUNE_SERVER_TOKEN", "secret")
    assert server_token() == "secret"
    assert _models().state == "ok"
    monkeypatch.setenv("LOPTUNE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path


def test_a_folder_is_made_once(tmp_path):
    made = []

    def make(folder):
        made.append(folder)
        (folder / "weights").write_text("1")

    folder = tmp_path / "cache" / "model"
    assert ensure_folder(folder, make) == ensure_folder(folder, make) == folder
    assert (folder / "weights").read_text() == "1"
    assert len(made) == 1


def test_an_interrupted_folder_is_not_there(tmp_path):
    def stop(folder):
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_folder(tmp_path / "model", stop)
    assert {path.name for path in tmp_path.iterdir()} <= {"model.lock"}


def test_processes_have_folders_of_their_own_and_the_next_ones_find_them(tmp_path):
    folder = tmp_path / "vllm"
    program = (
        "from pathlib import Path; from trainer.policy.cache import exclusive_folder; "
        f"exclusive_folder(Path('{folder}'))"
    )
    assert exclusive_folder(folder).name == "1"
    subprocess.run([sys.executable, "-c", program], check=True)  # takes 2, and ends
    assert [exclusive_folder(folder).name, exclusive_folder(folder).name] == ["2", "3"]


def test_processes_that_ask_at_once_share_one_making(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from trainer.policy.cache import "
        "ensure_folder\n"
        "ensure_folder(Path(sys.argv[1]), lambda folder: print('made', flush=True) or "
        "time.sleep(1))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate()[0] for process in processes) == ["", "made\n"]
    assert [process.returncode for process in processes] == [0, 0]
