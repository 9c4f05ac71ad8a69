import pytest

from loptune.errors import ConfigError, MissingError, StorageError
from loptune.run_names import lock_folder
from sweep.commands import status
from sweep.record.folder import all_sweeps, existing_sweep, request_stop, sweep_folder
from sweep.record.recorded_rounds import recorded_rounds
from sweep.search.event_log import EventLog
from tests.refusals import refused
from tests.sweep.ended_sweeps import write_sweep


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


def test_a_stop_that_cannot_be_requested_is_not_reported_as_requested(tmp_path):
    sweep = write_sweep(tmp_path)
    sweep.folder.stop.symlink_to(tmp_path / "missing" / "stop")
    with lock_folder(sweep.folder.root, "sweep"), refused("not-written", StorageError):
        status.stop("demo", runs_dir=tmp_path)
    sweep.folder.stop.unlink()
    sweep.folder.stop.touch()  # by somebody else
    request_stop(sweep.folder)


def test_the_status_of_rounds_recorded_by_another_version_is_an_error(tmp_path):
    sweep = write_sweep(tmp_path)
    EventLog(sweep.folder.event_log).append({"event": "analysis", "standings": []})
    with refused("of-another-version", StorageError):
        sweep.reloaded().trials()


def test_a_design_with_fields_of_another_version_is_an_error(tmp_path):
    sweep = write_sweep(tmp_path)
    design = {"looks": [5, 10], "finalists": 1, "worthwhile": 0.02, "better": [2, 2]}
    EventLog(sweep.folder.event_log).append(
        {"event": "plan", "sd": 0.01, "dof": 1, "design": design}
    )
    with refused("of-another-version", StorageError, names=("better",)):
        recorded_rounds(sweep.reloaded())


def test_an_error_of_this_program_is_not_reported_as_another_version(tmp_path, monkeypatch):
    sweep = write_sweep(tmp_path)
    known = {"analyses": [5], "efficacy": [2], "futility": [2]}
    plan = {"design": {"finalists": 1, "worthwhile": 0.02, **known}, "sd": 0.01, "dof": 1}
    EventLog(sweep.folder.event_log).append({"event": "plan", **plan})
    assert recorded_rounds(sweep.reloaded()) is not None
    monkeypatch.setattr("sweep.record.recorded_rounds.Noise", lambda: None)
    with pytest.raises(TypeError):
        recorded_rounds(sweep.reloaded())
