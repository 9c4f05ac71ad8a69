"""The tracker against a real MLflow server process that dies, returns or hangs."""

import socket
import time

import pytest

from tests.trainer.tracking.store import Server, config_for, context_for, history, lines_of, runs_of
from trainer.tracking.tracker import Tracker, upload
from trainer.tracking.uploading import has_unsent

pytestmark = pytest.mark.slow


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path / "server")
    server.start()
    yield server
    server.kill()


def log_steps(tracker, steps, pause_s=0.05):
    """Log like a training loop."""
    for step in steps:
        tracker.log({"policy/loss": step / 10, "rollout/reward": float(step)}, step)
        tracker.log_completions([{"text": f"completion {step}"}], step)
        time.sleep(pause_s)


def test_server_killed_and_restarted_mid_run(tmp_path, server):
    tracker = Tracker(config_for(server.uri), context_for(tmp_path), close_limit_s=60)
    log_steps(tracker, range(40))
    server.kill()
    log_steps(tracker, range(40, 120))
    server.start()
    log_steps(tracker, range(120, 140))
    assert tracker.close() is True
    (run,) = runs_of(server.uri)
    assert run.info.status == "FINISHED"
    assert [line["step"] for line in lines_of(tracker.run_dir)] == list(range(140))
    expected = [(step, step / 10) for step in range(140)]
    assert history(server.uri, run.info.run_id, "policy/loss") == expected
    assert "mlflow.loggedArtifacts" in run.data.tags


def test_server_that_accepts_and_never_answers(tmp_path, server, monkeypatch):
    """The worst server: neither log nor close waits for the call that hangs."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "240")
    tracker = Tracker(config_for(server.uri), context_for(tmp_path), close_limit_s=1)
    server.kill()
    with socket.create_server(("127.0.0.1", server.port)):
        log_steps(tracker, range(40))
        sending = tracker._thread
        assert tracker.close("KILLED") is False
        assert has_unsent(tracker.run_dir)
        assert sending is not None and sending.is_alive()
    server.start()
    run_id = upload(tracker.run_dir)
    assert [step for step, _ in history(server.uri, run_id, "policy/loss")] == list(range(40))
    assert [run.info.status for run in runs_of(server.uri)] == ["KILLED"]
    assert not has_unsent(tracker.run_dir)
