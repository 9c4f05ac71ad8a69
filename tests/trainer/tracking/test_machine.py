"""MLflow's monitor of the machine, for the runs that want it."""

import threading
import time

import pytest

from tests.trainer.tracking.store import config_for, context_for, history, runs_of
from trainer.tracking.tracker import Tracker, upload

CPU = "system/cpu_utilization_percentage"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_resumed_run_continues_machine_metrics_if_configured(tmp_path, uri, monkeypatch, wanted):
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    before = set(threading.enumerate())
    counts = [0]
    for _ in range(2):
        tracker = Tracker(config_for(uri, system_metrics=wanted), context_for(tmp_path))
        deadline = time.monotonic() + (30 if wanted else 0.5)
        assert tracker.mlflow_run_id
        while (
            len(history(uri, tracker.mlflow_run_id, CPU)) <= counts[-1]
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        assert tracker.close()
        counts.append(len(history(uri, tracker.mlflow_run_id, CPU)))
    assert (0 < counts[1] < counts[2]) if wanted else counts == [0, 0, 0]
    assert [step for step, _ in history(uri, tracker.mlflow_run_id, CPU)] == list(range(counts[-1]))
    assert {thread.name for thread in set(threading.enumerate()) - before} == set()


def test_an_upload_does_not_measure_the_machine_that_sends_it(tmp_path, uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.01")
    tracker = Tracker(config_for(uri, offline=True), context_for(tmp_path))
    tracker.log({"policy/loss": 1.0}, 1)
    tracker.close()
    upload(tracker.run_dir)
    assert [run.data.metrics for run in runs_of(uri)] == [{"policy/loss": 1.0}]
