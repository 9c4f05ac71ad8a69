import sys
from pathlib import Path

import pytest

from loptune.errors import StorageError
from sweep.record.folder import sweep_folder
from sweep.record.sweep_record import SweepRecord, last_record, planned_trials
from sweep.tracking.outcomes import ended_trials
from tests.refusals import refused
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.spaces import make_spec


def test_a_finite_space_plans_no_more_than_it_has(tmp_path):
    grid = {"algorithm.ar_alpha": {"choice": [0.0, 0.1, 0.2, 0.3, 0.4]}}
    baselines = [{"algorithm.ar_alpha": 0.1}, {"algorithm.ar_alpha": 0.25}]
    search = {"sampler": "grid"}
    spec = make_spec(tmp_path, parameters=grid, baselines=baselines, search=search, seeds=[0, 1])
    assert planned_trials(spec) == 6 * 2  # five points and the baseline that lies between two
    search = {"sampler": "tpe", "configurations": 3}
    assert (
        planned_trials(make_spec(tmp_path, parameters=grid, baselines=baselines, search=search))
        == 5 * 2
    )


def test_trials_without_an_event_log_are_not_an_empty_sweep(tmp_path):
    sweep = write_sweep(tmp_path, "demo", {0: {0: 0.5}})
    sweep.folder.trials.mkdir(exist_ok=True)
    sweep.folder.event_log.rename(tmp_path / "moved")
    with refused("event-log-missing", StorageError, names=(str(sweep.folder.event_log),)):
        sweep.reloaded().trials()


def test_hours_and_seconds_are_those_on_record(tmp_path):
    resources = {"gpus_per_trial": 0.5}
    sweep = write_sweep(tmp_path, "demo", {0: {0: 0.5, 1: 0.6}}, resources=resources)
    assert sweep.step_seconds() == [2.0, 2.0]  # the torn second line counts no more than it says
    assert sweep.gpu_hours() == pytest.approx(2 * 2.0 * 0.5 / 3600)


def test_what_failed_is_explained_by_its_last_error(tmp_path):
    sweep = write_sweep(tmp_path)
    (failed,) = (ended for ended in ended_trials(sweep) if ended.trial.state == "FAIL")
    assert failed.key.startswith("demo/c001-s1/")  # and the sweep's own id
    assert failed.trial.reason == "diverged at step 3: policy/loss is nan"
    (sweep.folder.trial("c001-s1") / "failure.txt").write_text("rank 1: out of memory\n")
    assert {trial.name: trial.reason for trial in sweep.trials()}[
        "c001-s1"
    ] == "rank 1: out of memory"


def test_the_last_record_is_read_from_the_end_of_whole_lines(tmp_path):
    assert last_record(tmp_path) == {}
    lines = "".join(
        f'{{"step": {step}, "time": 1.0, "text": "{"x" * 200}"}}\n' for step in range(100)
    )
    (tmp_path / "metrics.jsonl").write_text(lines + '{"step": 100, "ti')
    assert last_record(tmp_path)["step"] == 99
    long = f'{{"step": 100, "text": "{"x" * 100_000}"}}\n'
    (tmp_path / "metrics.jsonl").write_text(lines + long)
    assert last_record(tmp_path)["step"] == 100


def test_a_command_is_ready_to_be_typed(tmp_path, monkeypatch):
    def command(verb, runs_dir):
        return SweepRecord(make_spec(tmp_path), sweep_folder(runs_dir, "demo")).command(verb)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/sweep"])
    assert command("resume", Path("runs")) == "sweep resume demo"
    assert command("resume", Path("my runs")) == "sweep resume demo --runs-dir 'my runs'"
    monkeypatch.setattr(sys, "argv", ["/x/sweep/__main__.py"])
    elsewhere = tmp_path.parent / "elsewhere"
    assert command("ui", elsewhere) == f"python -m sweep ui demo --runs-dir {elsewhere}"
