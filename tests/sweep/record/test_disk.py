import shutil
from dataclasses import replace

import pytest

from sweep.record import disk
from sweep.record.disk import CheckpointSpace, checkpoint_sizes, shrink_ended
from sweep.record.folder import SweepFolder, read_spec, sweep_folder
from sweep.record.sweep_record import SweepRecord
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.spaces import make_spec
from tests.trainer.checkpoint.test_on_disk import write_checkpoint as write_whole
from trainer.checkpoint.on_disk import is_weights_only, steps_on_disk
from trainer.checkpoint.run_state import RunState
from trainer.planning.memory import planned_checkpoint_bytes

ONE = 105_920 * (4 + 8)  # float32 weights of the embedded policy and Adam's two moments
AT_A_TIME = 2 + 1 + 1  # the last two, the best, and the one that is being written


@pytest.fixture
def folder(tmp_path):
    new_folder = SweepFolder(tmp_path, "kk")
    new_folder.root.mkdir()
    return new_folder


def room(folder, tmp_path):
    spec = make_spec(tmp_path)
    assert (spec.trainer.base.checkpoint.keep_last, spec.trainer.base.checkpoint.keep_best) == (
        2,
        True,
    )
    assert planned_checkpoint_bytes(spec.trainer.base, on_gpu=False) == ONE
    return CheckpointSpace(SweepRecord(spec, folder))


def write_checkpoint(folder, trial, step, size):
    checkpoint = folder.trial(trial) / "checkpoints" / f"step-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(bytes(size))


def test_a_trial_needs_room_for_what_it_keeps_and_one_more(folder, tmp_path, monkeypatch):
    checkpoint_room = room(folder, tmp_path)
    monkeypatch.setattr(disk, "free_bytes", lambda path: AT_A_TIME * ONE)
    assert checkpoint_room.shortage("c000-s0", []) is None
    monkeypatch.setattr(disk, "free_bytes", lambda path: AT_A_TIME * ONE - 1)
    problem = checkpoint_room.shortage("c000-s0", [])
    assert problem is not None
    assert problem.code == "no-room-for-checkpoints"
    assert all(data in problem.what for data in ("c000-s0", " 0 ", "5.1 MB"))
    assert problem.where == f"{folder.root}, 5.1 MB free"


def test_running_trials_still_write_what_they_do_not_have_yet(folder, tmp_path, monkeypatch):
    checkpoint_room = room(folder, tmp_path)
    write_checkpoint(folder, "c000-s0", 10, ONE)
    write_checkpoint(folder, "c000-s0", 20, ONE)
    needed = 2 * AT_A_TIME * ONE - 2 * ONE
    monkeypatch.setattr(disk, "free_bytes", lambda path: needed)
    assert checkpoint_room.shortage("c001-s0", ["c000-s0"]) is None
    monkeypatch.setattr(disk, "free_bytes", lambda path: needed - 1)
    assert checkpoint_room.shortage("c001-s0", ["c000-s0"]) is not None


def test_a_larger_checkpoint_than_expected_counts_also_after_a_restart(
    folder, tmp_path, monkeypatch
):
    write_checkpoint(folder, "c000-s0", 10, 2 * ONE)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 2 * AT_A_TIME * ONE - 1)
    assert room(folder, tmp_path).shortage("c001-s0", []) is not None
    monkeypatch.setattr(disk, "free_bytes", lambda path: 2 * AT_A_TIME * ONE)
    assert room(folder, tmp_path).shortage("c001-s0", []) is None


def test_partial_and_damaged_checkpoints_hold_space_too(folder):
    root = folder.trial("c000-s0") / "checkpoints"
    for name, size in (("step-10", 3), ("damaged-step-5", 4), (".step-20.partial", 5)):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_bytes(bytes(size))
    assert sorted(checkpoint_sizes(folder.trial("c000-s0"))) == [3, 4, 5]
    assert checkpoint_sizes(folder.trial("c001-s0")) == []


def run_trial(folder, trial):
    """Four checkpoints, the second of which has the best accuracy."""
    root = folder.trial(trial) / "checkpoints"
    root.mkdir(parents=True)
    accuracy = {0: 0.9, 2: 0.1, 4: 0.7, 6: 0.2, 8: 0.3}

    def write(partial):
        evaluations = [
            (step, accuracy[step]) for step in accuracy if 0 < step <= int(partial.name[6])
        ]
        (partial / "model.safetensors").write_bytes(bytes(4))
        (partial / "training_state.safetensors").write_bytes(bytes(8))
        RunState(int(partial.name[6]), evaluations, 0, {}).write(partial)

    for step in (2, 4, 6, 8):
        write_whole(root, step, write)
    return root


def test_ended_trials_keep_weights_and_others_everything(tmp_path):
    write_sweep(tmp_path, "demo", {0: {0: 0.5}, 1: {0: 0.2}, 2: {0: "diverged"}, 3: {}})
    folder = sweep_folder(tmp_path, "demo")
    roots = [run_trial(folder, f"c{number:03}-s0") for number in range(4)]
    sweep = SweepRecord(read_spec(folder), folder)
    configurations = sweep.configurations
    configurations[1].results[0] = replace(configurations[1].results[0], state="PRUNED")
    shrink_ended(sweep, set())
    ended, running = [8, 6, 4], [8, 6, 4, 2]  # the last three
    assert [steps_on_disk(root) for root in roots] == [ended, ended, running, running]
    assert [is_weights_only(root / "step-8") for root in roots] == [True, True, False, False]


def test_a_trial_that_still_writes_is_thinned_once_it_has_closed(tmp_path):
    write_sweep(tmp_path, "demo", {0: {0: 0.5}, 1: {0: 0.5}, 2: {0: 0.5}})
    folder = sweep_folder(tmp_path, "demo")
    closing, killed, _ = roots = [run_trial(folder, f"c00{number}-s0") for number in range(3)]
    shrunk = set()
    for root in roots:
        (root / ".step-9.1.partial").mkdir()
    sweep = SweepRecord(read_spec(folder), folder)
    for configuration in sweep.configurations[:2]:
        configuration.results[0] = replace(configuration.results[0], state="PRUNED")
    shrink_ended(sweep, shrunk)  # a whole trial has closed: what it left is a killed process's
    assert [steps_on_disk(root) for root in roots] == [[8, 6, 4, 2], [8, 6, 4, 2], [8, 6, 4]]
    assert shrunk == {"c002-s0"}
    (closing / ".step-9.1.partial").rmdir()
    shrink_ended(sweep, shrunk)
    assert [steps_on_disk(root) for root in roots] == [[8, 6, 4], [8, 6, 4, 2], [8, 6, 4]]
    shrink_ended(sweep, shrunk, all_have_closed=True)
    assert steps_on_disk(killed) == [8, 6, 4] and not (killed / ".step-9.1.partial").exists()


def keeping(changes):
    """A space whose trials keep these checkpoints."""
    overrides = {f"checkpoint.{key}": value for key, value in changes.items()}
    return {"trainer": {"preset": "tiny_kk", "overrides": overrides}}


def test_the_best_of_the_checkpoints_that_there_are_is_kept(tmp_path):
    sweep = write_sweep(tmp_path, "demo", {0: {0: 0.5}}, **keeping({"keep_last": 1}))
    root = run_trial(sweep.folder, "c000-s0")
    shutil.rmtree(root / "step-4")  # the best evaluation's
    shrink_ended(sweep, set())
    assert steps_on_disk(root) == [8]  # the last is also the best of 2, 6 and 8


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"keep_last": 3}, [8, 6, 4]),  # as `trainer evaluate TRIAL --last 3` reads them
        ({"keep_last": 1}, [8, 4]),
        ({"keep_last": 1, "keep_best": False}, [8]),
    ],
)
def test_an_ended_trial_keeps_the_weights_that_its_settings_keep(tmp_path, changes, steps):
    sweep = write_sweep(tmp_path, "demo", {0: {0: 0.5}}, **keeping(changes))
    root = run_trial(sweep.folder, "c000-s0")
    shrink_ended(sweep, set())
    assert steps_on_disk(root) == steps
    assert all(is_weights_only(root / f"step-{step}") for step in steps)
    kept = sweep.spec.program.checkpoints(on_gpu=False)
    assert kept.kept == changes["keep_last"] + changes.get("keep_best", True)


def test_a_folder_that_cannot_be_thinned_costs_space_and_nothing_else(
    tmp_path, monkeypatch, caplog
):
    def refuse(*_):
        raise PermissionError("not yours")

    write_sweep(tmp_path, "demo", {0: {0: 0.5}})
    folder = sweep_folder(tmp_path, "demo")
    root = run_trial(folder, "c000-s0")
    monkeypatch.setattr(disk, "keep_weights", refuse)
    shrink_ended(SweepRecord(read_spec(folder), folder), set())
    assert steps_on_disk(root) == [8, 6, 4, 2]
    assert f"{root}: not yours" in caplog.text
