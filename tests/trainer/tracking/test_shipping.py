import json
import math
from pathlib import Path

import pytest

from tests.trainer.tracking.store import config_for, context_for, history, sqlite_store
from trainer.tracking.tracker import Tracker, upload


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return sqlite_store(tmp_path)


def lines_of(run_dir: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_nonfinite_values_stay_out_of_mlflow(tmp_path: Path, uri: str) -> None:
    tracker = Tracker(config_for(uri), context_for(tmp_path))
    tracker.log({"policy/loss": math.inf, "policy/kl": 0.5}, 1)
    assert tracker.close("FAILED")
    assert tracker.run_id
    assert history(uri, tracker.run_id, "policy/loss") == []
    assert history(uri, tracker.run_id, "policy/kl") == [(1, 0.5)]
    assert lines_of(tracker.run_dir)[0]["nonfinite"] == {"policy/loss": "inf"}


def test_more_metrics_than_one_request_takes_all_arrive(tmp_path: Path, uri: str) -> None:
    tracker = Tracker(config_for(uri), context_for(tmp_path))
    for step in range(700):
        tracker.log({"policy/loss": step, "policy/kl": step}, step)
    assert tracker.close() and tracker.run_id
    assert history(uri, tracker.run_id, "policy/kl") == [(step, float(step)) for step in range(700)]


def test_a_metric_of_a_step_sent_in_part_is_sent_after_the_rewind(tmp_path: Path, uri: str) -> None:
    tracker = Tracker(config_for(uri), context_for(tmp_path))
    tracker.log({"policy/loss": 1.0}, 1)
    tracker.log({"policy/loss": 2.0}, 2)
    assert tracker.close("KILLED")
    tracker = Tracker(config_for(uri), context_for(tmp_path))
    tracker.rewind(1)
    tracker.log({"policy/loss": 2.0}, 2)
    tracker.log({"eval/accuracy": 0.5}, 2)
    assert tracker.close() and tracker.run_id
    assert history(uri, tracker.run_id, "policy/loss") == [(1, 1.0), (2, 2.0)]
    assert history(uri, tracker.run_id, "eval/accuracy") == [(2, 0.5)]


def test_a_batch_sent_twice_counts_once(tmp_path: Path, uri: str) -> None:
    """A process killed between sending and remembering."""
    tracker = Tracker(config_for(uri), context_for(tmp_path))
    tracker.log({"policy/loss": 1.0}, 1)
    assert tracker.close() and tracker.run_id
    state_file = tracker.run_dir / "tracking.json"
    state_file.write_text(json.dumps({**json.loads(state_file.read_text()), "metrics_sent": 0}))
    assert upload(tracker.run_dir) == tracker.run_id
    assert history(uri, tracker.run_id, "policy/loss") == [(1, 1.0)]
