import gzip
import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from dashboards.sources.stored import pack, unpack
from dashboards.statistics.group_sequential import Design
from dashboards.trial import Objective
from loptune.declared_metrics import unit_of
from loptune.errors import StorageError
from loptune.run_names import lock_folder
from sweep.record.folder import sweep_folder
from sweep.record.results import read_results
from sweep.record.sweep_record import open_sweep
from sweep.search.event_log import EventLog
from tests.dashboards.table import ALPHA, ETA, interim
from tests.refusals import refused
from tests.sweep.ended_sweeps import write_sweep
from trainer.evaluation.correctness import correctness_record


def write_metrics(folder, trial, accuracy, **more):
    run_dir = folder.trial(trial)
    run_dir.mkdir(parents=True, exist_ok=True)
    lines = [
        {"step": step, "time": 1.0, "eval/accuracy": value, **more}
        for step, value in accuracy.items()
    ]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_sweep_is_read_whole_from_its_folder(tmp_path):
    sweep = write_sweep(tmp_path, resources={"cpus_per_worker": 2})
    folder = sweep.folder
    more = {
        "policy/kl": 0.1,
        "tokens/gradient_fraction/0.00-0.25": 0.4,
        "time/step": 900.0,
        "eval/accuracy/test": 0.2,
    }
    write_metrics(folder, "c000-s0", {0: 0.1, 10: 0.4, 20: 0.6}, **more)
    results = read_results(sweep)
    assert results.objective == Objective("eval/accuracy", "max", 3)
    assert results.searched == (ALPHA,) and results.kinds == {ALPHA: "uniform"}
    assert (results.planned, results.device, results.devices, results.adaptive) == (
        6,
        "CPU",
        2.0,
        False,
    )
    trials = {trial.name: trial for trial in results.trials}
    assert len(trials) == 7 and "c003-s1" not in trials  # it has not started
    first = trials["c000-s0"]
    failed = trials["c001-s1"]
    assert (first.state, first.score, first.step, first.hours) == ("COMPLETE", 0.5, 20, 1.5)
    assert first.parameters == {ALPHA: 0.0, ETA: 0.0} and first.rule == "grpo"
    assert first.curves["eval/accuracy"].values == (0.1, 0.4, 0.6) and first.curves[
        "policy/kl"
    ].steps == (0, 10, 20)
    assert first.latest == {"tokens/gradient_fraction/0.00-0.25": 0.4}
    assert first.test == pytest.approx(0.2)
    assert (
        failed.state == "FAIL"
        and math.isnan(failed.score)
        and failed.reason.startswith("diverged at step 3")
    )
    assert trials["c002-s0"].rule == "grpo + AR"
    assert results.best_of(results.comparable) == "2"


def test_without_a_list_the_first_plain_configuration_is_the_baseline(tmp_path):
    free = write_sweep(tmp_path, "free", baselines=[])
    assert read_results(free).baseline == "0"
    failed = {0: {0: "diverged at step 3"}, 1: {0: 0.5}}
    assert read_results(write_sweep(tmp_path, "failed", failed, baselines=[])).baseline is None
    listed = write_sweep(tmp_path, "listed", failed, baselines=[{ALPHA: 0.0}])
    results = read_results(listed)
    assert results.baseline == "0" and results.compared_with is None


def test_a_trial_under_way_has_the_mean_of_its_window_so_far(tmp_path):
    sweep = write_sweep(tmp_path, "demo", {0: {}}, objective={"window": 2})
    folder = sweep.folder
    write_metrics(folder, "c000-s0", {0: 0.1, 10: 0.4, 20: 0.6})
    (trial,) = read_results(sweep).trials
    assert (trial.state, trial.score) == ("KILLED", 0.5)
    with lock_folder(folder.root):
        results = read_results(sweep)
    assert results.running and results.trials[0].state == "RUNNING"


def test_problems_are_averaged_over_the_evaluations_of_the_score(tmp_path):
    counts = [
        (0, {"dev": [0, 0, 0], "hard": [0, 0]}),
        (10, {"dev": [4, 0, 2], "hard": [1, 0]}),
        (20, {"dev": [4, 2, 2], "hard": [3, 0]}),
    ]
    lines = [
        {"step": step}
        | correctness_record(
            {name: (np.array(row), np.full(len(row), 4)) for name, row in sets.items()}
        )
        for step, sets in counts
    ]
    cases = {
        "eval/accuracy": (2, [1.0, 0.25, 0.5]),
        "eval/accuracy/hard": (1, [0.75, 0.0]),
        "eval/reward": (1, None),
    }
    for metric, (window, expected) in cases.items():
        name = metric.replace("/", "-")
        write_sweep(tmp_path, name, {0: {0: 0.5}}, objective={"metric": metric, "window": window})
        file = sweep_folder(tmp_path, name).trial("c000-s0") / "correctness.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (trial,) = read_results(open_sweep(tmp_path, name)).trials
        assert trial.solved == (expected and pytest.approx(expected))


def test_finalists_come_under_the_numbers_of_the_sweep_that_chose_them(tmp_path):
    write_sweep(tmp_path)
    confirms = {"sweep": "demo", "configurations": [0, 2]}
    write_sweep(tmp_path, "demo-confirm", {0: {2: 0.5}, 1: {2: 0.6}}, confirms=confirms)
    design = Design((3, 6), 1, 0.02, (3.0, 2.0), (2.0, 1.5))
    plan = {"event": "plan", "design": vars(design), "sd": 0.01, "dof": 4, "time": 1.0}
    results = (
        interim("1", 3, 0.05, None, "undecided"),
        interim("1", 6, 0.04, (0.01, 0.07), "better"),
    )
    analyses = [
        {"event": "analysis", "results": [asdict(result)], "time": 1.0} for result in results
    ]
    EventLog(sweep_folder(tmp_path, "demo-confirm").event_log).append(plan, *analyses)
    fresh = read_results(open_sweep(tmp_path, "demo")).fresh
    assert fresh is not None and [trial.configuration for trial in fresh.trials] == ["0", "2"]
    assert fresh.rounds is not None and fresh.rounds.winner is not None
    assert (fresh.rounds.planned, fresh.rounds.worthwhile, fresh.rounds.outcome) == (
        (3, 6),
        0.02,
        "better",
    )
    assert (fresh.rounds.winner.configuration, fresh.rounds.winner.gain) == ("2", 0.04)


def test_results_are_packed_and_unpacked_whole(tmp_path):
    sweep = write_sweep(tmp_path)
    write_sweep(
        tmp_path, "demo-confirm", {0: {2: 0.5}}, confirms={"sweep": "demo", "configurations": [0]}
    )
    results = read_results(sweep)
    again = unpack(pack(results), "here")
    assert repr(again) == repr(results)  # NaN equals nothing
    nested = gzip.compress(b"[" * 100_000)
    for content in (b"", pack(results)[:40], b"nonsense", nested):
        with refused("no-results-file", StorageError):
            unpack(content, "here")


def test_stored_results_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dashboards.sources.stored.MAX_BYTES", 1000)
    content = gzip.compress(b" " * 1_000_000)
    with refused("no-results-file", StorageError) as raised:
        unpack(content, "here")
    assert str(raised.value.__cause__).startswith("more than ")


def test_units_are_declared_and_held_out_objectives_are_named():
    assert (
        unit_of("policy/kl") == "nats"
        and unit_of("optim/grad_norm") == ""
        and unit_of("unknown") == ""
        and unit_of("eval/accuracy/3") == "fraction"
    )
    assert Objective("eval/reward").held_out_metric == "eval/reward/test"
    assert Objective("eval/accuracy/hard").held_out_metric == "eval/accuracy/test"
