import shutil
from dataclasses import replace

import pytest

from loptune.errors import StorageError
from sweep.driver import run
from sweep.driver.resume_options import check_checkpoints, restart_damaged, retry_failed
from sweep.record.best import choose_best
from tests.refusals import refused
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.search.instant_sweeps import ended as ended_with
from tests.sweep.search.instant_sweeps import searcher_in
from trainer.attempt import Attempt
from trainer.checkpoint.on_disk import steps_on_disk, write_checkpoint
from trainer.parallel.ranks import Parallel


def write_one(root):
    def write_files(partial):
        (partial / "weights").write_bytes(b"1")

    root.mkdir(parents=True)
    (root.parent / "metrics.jsonl").touch()
    write_checkpoint(root, 4, write_files, Parallel(), Attempt(root.parent))


def test_a_request_to_stop_that_comes_while_the_driver_starts_is_kept(tmp_path, monkeypatch):
    def slow_check(spec):
        assert not stop.exists()  # a driver before was asked
        stop.touch()

    sweep = write_sweep(tmp_path)
    stop = sweep.folder.stop
    stop.touch()
    monkeypatch.setattr(run, "check_program", slow_check)
    monkeypatch.setattr(run, "_run_driver", lambda *_: int(stop.exists()))
    assert run.resume_sweep(sweep, run.Options()) == 1


def test_failures_of_a_finalist_that_is_decided_stay(tmp_path):
    sweep = write_sweep(tmp_path)
    sweep.configurations[1] = replace(sweep.configurations[1], retired=True)
    assert retry_failed(sweep) == []


def test_failures_are_taken_back_and_the_trials_issued_again(tmp_path):
    sweep = write_sweep(tmp_path)
    failed = [row.name for row in sweep.trials() if row.state == "FAIL"]
    ended = sum(row.ended for row in sweep.trials())
    assert failed == ["c001-s1"]

    assert retry_failed(sweep) == failed
    sweep = sweep.reloaded()
    assert sum(row.ended for row in sweep.trials()) == ended - 1
    assert retry_failed(sweep) == []
    searcher = searcher_in(sweep.folder.root, sweep.spec)
    # the other was never issued
    assert [key.name for key in searcher.open_trials] == ["c001-s1", "c003-s1"]
    suggestion = searcher.suggest("again")
    assert suggestion["trial"] == "c001-s1"
    searcher.on_trial_complete("again", ended_with(0.9))
    best = choose_best(sweep.reloaded()).best
    assert best is not None
    assert (best.configuration, best.score) == (1, pytest.approx(0.9))


def test_trials_without_an_intact_checkpoint_begin_again_and_no_others(tmp_path):
    sweep = write_sweep(tmp_path, "demo", {0: {0: 0.5}, 1: {}, 2: {}, 3: {}})
    folder = sweep.folder
    damaged = [folder.trial(name) for name in ("c000-s0", "c001-s0")]  # the first has ended
    intact = folder.trial("c002-s0")
    fresh = folder.trial("c003-s0")
    for run_dir in (*damaged, intact):
        write_one(run_dir / "checkpoints")
    for run_dir in damaged:
        (run_dir / "checkpoints" / "step-4" / "weights").write_bytes(b"2")

    assert restart_damaged(sweep) == ["c001-s0"]
    assert (
        damaged[1] / "earlier-1" / "checkpoints" / "damaged-step-4" / "weights"
    ).read_bytes() == b"2"
    assert not (damaged[1] / "checkpoints").exists()
    assert steps_on_disk(intact / "checkpoints") == [4]
    assert steps_on_disk(damaged[0] / "checkpoints") == [4]
    assert not fresh.exists()


@pytest.mark.parametrize(
    ("lost", "code"), [("checkpoints", "checkpoint-lost"), ("metrics.jsonl", "record-lost")]
)
def test_trials_that_lost_a_part_begin_again_only_when_told(tmp_path, lost, code):
    sweep = write_sweep(tmp_path, "demo", {0: {}, 1: {}, 2: {}})
    every = sweep.spec.trainer.base.checkpoint.every_steps
    for trial, step in (("c000-s0", every + 9), ("c001-s0", every)):
        write_one(sweep.folder.trial(trial) / "checkpoints")
        (sweep.folder.trial(trial) / "metrics.jsonl").write_text(f'{{"step": {step}}}\n')
    check_checkpoints(sweep)
    gone = sweep.folder.trial("c000-s0") / lost
    gone.rename(tmp_path / "gone")
    # a driver killed before the first one
    shutil.rmtree(sweep.folder.trial("c001-s0") / "checkpoints")
    with refused(code, StorageError, names=("c000-s0",)) as caught:
        check_checkpoints(sweep)
    assert "sweep resume demo --start-over" in caught.value.hint
    assert restart_damaged(sweep) == ["c000-s0"]


def test_a_checkpoint_that_may_not_be_read_is_no_reason_to_begin_again(tmp_path, monkeypatch):
    sweep = write_sweep(tmp_path, "demo", {0: {}})
    folder = sweep.folder
    root = folder.trial("c000-s0") / "checkpoints"
    write_one(root)

    def refuse(checkpoint):
        raise StorageError("no permission", str(checkpoint), code="checkpoint-unreadable")

    monkeypatch.setattr("trainer.checkpoint.on_disk.damaged_files", refuse)
    with refused("checkpoint-unreadable", StorageError):
        restart_damaged(sweep)
    assert steps_on_disk(root) == [4]


def test_a_sweep_that_was_killed_before_its_first_event_has_nothing_to_retry(tmp_path):
    sweep = write_sweep(tmp_path, "demo", {0: {0: 0.5}})
    sweep.folder.event_log.unlink()
    shutil.rmtree(sweep.folder.trials, ignore_errors=True)
    assert retry_failed(sweep.reloaded()) == []
    assert not sweep.folder.event_log.exists()
