"""One sweep in which every trial meets another fate, on real Ray."""

import json
import statistics
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from ray import tune
from ray.exceptions import OutOfMemoryError

from loptune.errors import ConfigError, MissingError, StorageError
from sweep.driver.control import StopControl
from sweep.driver.guard import dead_scratch
from sweep.driver.run import Options, _fit, start_sweep, tune_error
from sweep.record.folder import sweep_folder
from sweep.record.sweep_record import SweepRecord
from sweep.space.file import load_space
from sweep.trials.cluster import Node
from tests.refusals import refused
from tests.sweep.harness import (
    history,
    metrics,
    results,
    states,
    sweep,
    wait_until_gone,
    write_space,
)

pytestmark = pytest.mark.slow

FAULTS = {
    "c001-s0": {"kill_at": 3},
    "c002-s0": {"diverge_at": 3},
    "c003-s0": {"kill_at": 3, "always": True},
    "c004-s0": {"nan_at": 4},
    "c005-s0": {"raise_at": 1},
}


def control_of(runs):
    spec = load_space(write_space(runs / "any.yaml"))
    return StopControl(SweepRecord(spec, sweep_folder(runs, "fake")), "sweep resume fake")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    (runs / "faults.json").write_text(json.dumps(FAULTS))
    baselines = [{"algorithm.ar_alpha": 0.05 * number} for number in range(6)]
    space = write_space(
        runs / "space.yaml", baselines=baselines, search={"sampler": "random", "configurations": 2}
    )
    code, out, err = sweep("run", space, "--runs-dir", runs, "--offline", "--cpus", 2, report=True)
    return runs / "fake", code, out, err


def test_failed_trials_give_exit_code_1_and_the_sweep_goes_on(finished):
    folder, code, out, err = finished
    assert code == 1, err
    ends = ["COMPLETE"] * 2 + ["FAIL"] * 4 + ["COMPLETE"] * 2
    assert states(folder) == {f"c00{number}-s0": state for number, state in enumerate(ends)}
    assert "8 trials: 4 complete, 0 stopped early, 4 failed" in out
    assert "failed: c005-s0  the disk caught fire" in out
    assert "failed: c003-s0  rank 0 died" in out
    complete = {
        trial: r["score"] for trial, r in results(folder).items() if r["state"] == "COMPLETE"
    }
    assert (
        f"best: configuration {int(max(complete, key=lambda trial: complete[trial])[1:4])} " in out
    )


def test_a_killed_worker_is_retried_from_its_checkpoint(finished):
    folder, _, out, _ = finished
    assert [event["step"] for event in history(folder, "c001-s0", "resume")] == [0, 2]
    assert [event["step"] for event in history(folder, "c001-s0", "step")] == [1, 2, 3, 3, 4]
    assert [line["step"] for line in metrics(folder, "c001-s0")] == [1, 2, 3, 4]
    assert "retry 1 of 1: rank 0 died" in out
    evaluations = [
        line["eval/accuracy"] for line in metrics(folder, "c001-s0") if "eval/accuracy" in line
    ]
    assert evaluations == pytest.approx([0.052, 0.054])  # as of an undisturbed trial
    assert results(folder)["c001-s0"]["score"] == pytest.approx(statistics.mean(evaluations))
    # and no more
    assert [len(history(folder, trial, "build")) for trial in ("c003-s0", "c005-s0")] == [2, 2]


@pytest.mark.parametrize(
    ("trial", "reason"),
    [
        ("c002-s0", "diverged at step 3: policy/loss is nan"),
        ("c004-s0", "diverged at step 4: eval/accuracy is nan"),
    ],
)
def test_divergence_fails_without_a_retry_or_a_score(finished, trial, reason):
    folder, _, out, _ = finished
    assert len(history(folder, trial, "build")) == 1
    assert results(folder)[trial]["score"] is None
    assert results(folder)[trial]["reason"] == reason
    assert f"failed: {trial}  {reason}" in out


def test_ranks_stay_warm_between_trials(finished):
    folder, *_ = finished
    pids = [history(folder, f"c00{number}-s0", "build")[-1]["pid"] for number in range(8)]
    # Two slots; two kills and two spent retries cost a process each.
    assert len(set(pids)) < len(pids)


def test_nothing_is_left_over(finished):
    folder, *_ = finished
    # workers notice the end of Ray a moment later
    wait_until_gone(sweep_folder(folder.parent, "fake"))
    assert str(folder) not in [str(root) for _, root in dead_scratch()]


def test_what_tune_gives_up_with_is_told_by_the_error_that_it_wraps(tmp_path):
    try:
        try:
            raise OSError(5, "Input/output error")
        except OSError:
            raise tune.TuneError("Traceback:\n  File x") from None
    except tune.TuneError as wrapped:
        error = tune_error(wrapped, control_of(tmp_path))
    assert error.code == "tune-gave-up"
    assert error.what.endswith("OSError: [Errno 5] Input/output error")
    assert error.hint == "sweep resume fake"
    assert tune_error(tune.TuneError("Failures: x"), control_of(tmp_path)).what.endswith(
        "TuneError: Failures: x"
    )


def test_a_sweep_does_not_start_in_the_folder_of_a_run(tmp_path):
    folder = sweep_folder(tmp_path, "fake")
    folder.root.mkdir()
    (folder.root / "config.yaml").write_text("model: {}\n")
    with refused("name-of-a-run", ConfigError):
        start_sweep(
            SweepRecord(load_space(write_space(tmp_path / "space.yaml")), folder), Options()
        )
    assert [path.name for path in folder.root.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("kept", [(), ("notes.txt",)])
def test_a_start_without_a_cluster_leaves_no_folder_but_what_was_there(tmp_path, monkeypatch, kept):
    folder = sweep_folder(tmp_path / "runs", "fake")
    for name in kept:
        folder.root.mkdir(parents=True)
        (folder.root / name).touch()

    def fail(*arguments):
        folder.log.touch()
        raise MissingError("no Ray cluster at head:6379", "--address", "start one")

    monkeypatch.setattr("sweep.driver.run.ray_running", fail)
    with pytest.raises(MissingError):
        start_sweep(
            SweepRecord(load_space(write_space(tmp_path / "space.yaml")), folder),
            Options(address="head:6379"),
        )
    assert [path.name for path in folder.runs_dir.rglob("*") if path.is_file()] == list(kept)
    assert folder.root.exists() == bool(kept)


def test_a_failed_start_leaves_no_folder_or_can_be_resumed(tmp_path, monkeypatch):
    folder = sweep_folder(tmp_path / "runs", "fake")
    spec = load_space(
        write_space(tmp_path / "space.yaml"), ["trainer.tracking.uri=http://127.0.0.1:9"]
    )
    monkeypatch.setattr(
        "sweep.driver.run.ray_running", lambda *arguments: nullcontext([Node(2, 0)])
    )
    with pytest.raises(StorageError) as raised:
        start_sweep(SweepRecord(spec, folder), Options())
    assert raised.value.where == "http://127.0.0.1:9"
    assert not folder.root.exists()

    def fail(*arguments):
        raise RuntimeError("a daemon did not come up")

    monkeypatch.setattr("sweep.driver.run.ray_running", fail)
    with refused("ray-did-not-start", StorageError) as raised:
        start_sweep(SweepRecord(spec, folder), Options(cpus=2))
    assert "a daemon did not come up" in raised.value.what
    assert f"resume fake --cpus 2 --runs-dir {folder.runs_dir}" in raised.value.hint
    assert folder.exists()


class Failing:
    """A tuner that ends as Ray Tune does: with an error of its own, made of another."""

    def __init__(self, cause):
        self.cause = cause

    def fit(self):
        raise RuntimeError("Caught unexpected exception") from self.cause


def test_a_trial_out_of_memory_stops_the_sweep_with_a_remedy(tmp_path):
    searcher = SimpleNamespace(failure=None)
    cause = "2 workers were killed, 22.60GB used / 23.54GB limit"
    tuner = Failing(OutOfMemoryError(f"{cause}\nObject store memory usage: []"))
    with refused("trial-killed", StorageError) as raised:
        _fit(tuner, searcher, control_of(tmp_path))
    assert cause in raised.value.what
    assert raised.value.hint == "sweep resume fake"
    tuner = Failing(ValueError("ours"))
    with pytest.raises(RuntimeError, match="unexpected"):
        _fit(tuner, searcher, control_of(tmp_path))
