import pytest

from sweep.record.folder import all_sweeps, existing_sweep, request_stop, sweep_folder
from tests.refusals import refused
from trainer.errors import ConfigError, MissingError, StorageError


@pytest.mark.parametrize("name", ["../x", "", "a b", "n" * 300])
def test_a_name_that_is_no_plain_name_is_refused_and_nothing_is_written(tmp_path, name):
    with pytest.raises(ConfigError):
        sweep_folder(tmp_path / "runs", name)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_sweep_names_those_that_exist(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "space.lock.yaml").write_text("name: x")
    with pytest.raises(MissingError) as caught:
        existing_sweep(tmp_path, "three")
    assert caught.value.hint == "sweeps here: one, two"
    assert [folder.name for folder in all_sweeps(tmp_path)] == ["one", "two"]


def test_a_sweep_without_its_space_is_a_storage_error(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "events.jsonl").touch()
    with refused("space-missing", StorageError):
        existing_sweep(tmp_path, "demo")


def test_a_stop_request_on_a_vanished_folder_is_no_error(tmp_path):
    request_stop(sweep_folder(tmp_path, "demo"))
    assert list(tmp_path.iterdir()) == []
