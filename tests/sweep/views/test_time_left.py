import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sweep.record.folder import sweep_folder
from sweep.record.sweep_record import open_sweep
from sweep.search.event_log import EventLog
from sweep.views import time_left
from sweep.views.time_left import seconds_left
from tests.sweep.ended_sweeps import write_sweep


def rows_of(sweep, step):
    """The rows of a sweep whose unfinished trials run and are at this step of four."""
    return [
        trial if trial.ended else replace(trial, state="RUNNING", step=step, total_steps=4)
        for trial in sweep.trials(running=True)
    ]


def test_a_trial_takes_as_long_as_whole_ones_did(tmp_path):
    write_sweep(
        tmp_path, "demo", {0: {0: 0.5}, 1: {}}, search={"sampler": "random", "configurations": 3}
    )
    event_log = EventLog(sweep_folder(tmp_path, "demo").event_log)
    key = {"trial_id": "x", "seed": 0}
    event_log.append({"event": "retry", "configuration": 0, **key, "time": 2.0})
    event_log.append({"event": "trial", "configuration": 0, **key, "time": 100.0})
    ended = {"state": "COMPLETE", "score": 0.5, "reason": "", "step": 4}
    event_log.append({"event": "result", "configuration": 0, **key, **ended, "time": 180.0})
    sweep = open_sweep(tmp_path, "demo")
    left, all_left = seconds_left(sweep, rows_of(sweep, step=1))
    assert left == {"c001-s0": 60.0}
    assert all_left == 60 + 80 * (sweep.planned - 2)
    assert seconds_left(sweep, sweep.trials()) == ({}, None)  # nothing runs


def test_the_first_trials_take_their_time_for_their_share_of_the_steps(tmp_path, monkeypatch):
    search = {"sampler": "random", "configurations": 0}
    write_sweep(tmp_path, "demo", {0: {}, 1: {}}, search=search)
    now = time.time()
    monkeypatch.setattr(time_left, "time", SimpleNamespace(time=lambda: now))
    started = {"event": "trial", "trial_id": "x", "seed": 0, "time": now - 30}
    event_log = EventLog(sweep_folder(tmp_path, "demo").event_log)
    event_log.append({**started, "configuration": 0}, {**started, "configuration": 1})
    sweep = open_sweep(tmp_path, "demo")
    rows = rows_of(sweep, step=1)
    rows[1] = replace(rows[1], step=3)
    left, all_left = seconds_left(sweep, rows)
    # 30 s for a quarter and for three quarters of the steps: 120 s and 40 s, 80 s in the median
    assert left == pytest.approx({"c000-s0": 60, "c001-s0": 20})
    assert all_left == left["c000-s0"]  # nothing waits
    assert seconds_left(sweep, rows_of(sweep, step=0)) == ({}, None)
