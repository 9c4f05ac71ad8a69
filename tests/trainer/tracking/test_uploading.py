import math
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from tests.paths import ROOT
from tests.trainer.tracking.store import config_for, context_for, history, lines_of, runs_of
from trainer.tracking.tracker import Tracker
from trainer.tracking.uploading import recorded_values


def test_nonfinite_values_are_named_and_stay_out_of_mlflow(tmp_path, uri):
    tracker = Tracker(config_for(uri), context_for(tmp_path))
    nonfinite = {"policy/loss": math.nan, "optim/grad_norm": math.inf, "policy/kl": -math.inf}
    tracker.log({**nonfinite, "optim/lr": 0.1}, 1)
    assert tracker.close("FAILED")
    assert tracker.mlflow_run_id
    assert [history(uri, tracker.mlflow_run_id, name) for name in nonfinite] == [[]] * 3
    assert history(uri, tracker.mlflow_run_id, "optim/lr") == [(1, 0.1)]
    (line,) = lines_of(tracker.run_dir)
    assert [line[name] for name in nonfinite] == [None] * 3
    assert line["nonfinite"] == {
        "policy/loss": "nan",
        "optim/grad_norm": "inf",
        "policy/kl": "-inf",
    }


def test_more_metrics_than_one_request_takes_all_arrive(tmp_path, uri):
    tracker = Tracker(config_for(uri), context_for(tmp_path))
    for step in range(700):
        tracker.log({"policy/loss": step, "policy/kl": step}, step)
    assert tracker.close() and tracker.mlflow_run_id
    assert history(uri, tracker.mlflow_run_id, "policy/kl") == [
        (step, float(step)) for step in range(700)
    ]


@pytest.mark.parametrize(("arrived", "checkpoint"), [(True, 2), (False, 4)])
def test_mlflow_has_the_record_whatever_the_last_request_did(tmp_path, uri, arrived, checkpoint):
    """Killed between a request and the note that it was answered, then resumed, which computes
    steps again.
    """
    script = f"""
        import os, pathlib, sys
        from tests.trainer.tracking.store import config_for, context_for
        from trainer.tracking.tracker import Tracker
        tracker = Tracker(config_for({uri!r}), context_for(pathlib.Path({str(tmp_path)!r})))
        for step in (1, 2):
            tracker.log({{"policy/loss": step}}, step)
        tracker.uploader.send_all()
        client = tracker.uploader._client
        send = client.log_batch
        def die(*args, **kwargs):
            if {arrived}:
                send(*args, **kwargs)
            os.kill(os.getpid(), 9)
        client.log_batch = die
        for step in (3, 4):
            tracker.log({{"policy/loss": step}}, step)
        tracker.uploader.send_all()
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT)
    assert killed.returncode == -9
    assert [run.info.status for run in runs_of(uri)] == ["RUNNING"]
    tracker = Tracker(config_for(uri), context_for(tmp_path))
    tracker.rewind(checkpoint)
    for step in range(checkpoint + 1, 7):
        tracker.log({"policy/loss": step + 0.5}, step)
    assert tracker.close() and tracker.mlflow_run_id
    expected = [(step, step + 0.5 * (step > checkpoint)) for step in range(1, 7)]
    assert history(uri, tracker.mlflow_run_id, "policy/loss") == expected
    assert [(line["step"], line["policy/loss"]) for line in lines_of(tracker.run_dir)] == expected
    assert [run.info.status for run in runs_of(uri)] == ["FINISHED"]


def test_abandoned_steps_leave_the_record_while_it_logs(tmp_path, uri):
    context_for(tmp_path).run_dir.mkdir(parents=True)
    first = Tracker(config_for(uri), replace(context_for(tmp_path), attempt=1))
    for step in (1, 2, 3):
        first.log({"policy/loss": step / 10}, step)
    assert first.close("KILLED")
    second = Tracker(config_for(uri), replace(context_for(tmp_path), attempt=2))
    second.begin_process()
    second.log({"policy/loss": 0.9}, 4)
    second.uploader.send_all()
    abandoned = second.abandon(1)
    assert [(line["step"], line["attempt"]) for line in abandoned] == [(2, 1), (3, 1)]
    second.log({"policy/loss": 0.8}, 2)
    assert second.abandon(1) == []  # only what earlier processes wrote
    assert second.close()
    record = [(line["step"], line["attempt"]) for line in lines_of(second.run_dir)]
    assert record == [(1, 1), (4, 2), (2, 2)]
    sent = history(uri, second.mlflow_run_id, "policy/loss")
    assert {(4, 0.9), (2, 0.8)} <= set(sent)


def test_an_evaluation_that_was_no_number_is_read_back_as_nan(tmp_path):
    file = tmp_path / "metrics.jsonl"
    assert recorded_values(file, "eval/accuracy") == {}
    file.write_text(
        '{"step": 0, "time": 1, "eval/accuracy": 0.25}\n{"step": 1, "time": 2, "rollout/reward": '
        "1.0}\n"
        '{"step": 2, "time": 3, "eval/accuracy": null, "nonfinite": {"eval/accuracy": '
        '"nan"}}\n{"step": 4, "ev'
    )
    history = recorded_values(file, "eval/accuracy")
    assert history[0] == 0.25
    assert math.isnan(history[2])
    assert len(history) == 2
