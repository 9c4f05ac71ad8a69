import json
import re
import shlex
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from loptune.errors import MissingError, StorageError
from tests.refusals import refused
from tests.trainer.tracking.store import (
    config_for,
    context_for,
    history,
    lines_of,
    runs_of,
    sqlite_store,
)
from trainer.cli import main
from trainer.tracking import tracker as tracking
from trainer.tracking.mlflow_store import mlflow_name
from trainer.tracking.tracker import Tracker, upload
from trainer.tracking.uploading import has_unsent


def test_a_run_holds_metrics_params_config_completions_and_status(tmp_path, uri):
    from mlflow import MlflowClient

    tracker = Tracker(
        config_for(uri, tags={"team": "a"}), context_for(tmp_path, **{"loptune.trial": "t1"})
    )
    for step in (1, 2):
        tracker.log({"policy/loss": step / 4, "eval/accuracy/SET(1).2": 0.5}, step)
    tracker.log_completions([{"prompt": "p", "completion": "c", "reward": 3.0}], 2)
    tracker.log_correctness({"fractions": {}}, 2)
    tracker.summarize({"final/best_accuracy": 0.75})
    assert tracker.close("FINISHED") is True
    assert not has_unsent(tracker.run_dir)

    client = MlflowClient(uri)
    run = client.get_run(tracker.mlflow_run_id)
    assert history(uri, run.info.run_id, "policy/loss") == [(1, 0.25), (2, 0.5)]
    assert history(uri, run.info.run_id, "final/best_accuracy") == [(2, 0.75)]
    allowed = mlflow_name("eval/accuracy/SET(1).2")
    assert allowed.startswith("eval/accuracy/SET_1_.2-")
    assert history(uri, run.info.run_id, allowed) == [(1, 0.5), (2, 0.5)]
    assert run.info.status == "FINISHED" and run.info.end_time
    assert run.data.params["algorithm.ar_alpha"] == "0.0"
    assert run.data.params["evaluation.sets.dev.size"] == "100"
    assert run.data.tags["loptune.trial"] == "t1" and run.data.tags["team"] == "a"
    artifacts = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"config.yaml", "completions.json", "correctness.jsonl"}
    assert json.loads(run.data.tags["mlflow.loggedArtifacts"]) == [
        {"path": "completions.json", "type": "table"}
    ]
    table = json.loads(
        Path(client.download_artifacts(run.info.run_id, "completions.json")).read_text(
            encoding="utf-8"
        )
    )
    assert table == {
        "columns": ["prompt", "completion", "reward", "step"],
        "data": [["p", "c", 3.0, 2]],
    }
    assert Path(run.info.artifact_uri.removeprefix("file://")).is_relative_to(
        tmp_path / "mlartifacts"
    )


def test_undeclared_metric_is_refused_and_not_written(tmp_path, uri):
    tracker = Tracker(config_for(uri), context_for(tmp_path))
    with pytest.raises(KeyError, match="policy/lost"):
        tracker.log({"policy/lost": 1.0}, 1)
    tracker.close()
    assert lines_of(tracker.run_dir) == []


def test_a_changed_configuration_logs_only_what_is_missing(tmp_path, uri):
    Tracker(config_for(uri), context_for(tmp_path)).close()
    changed = config_for(uri).model_copy(update={"max_steps": 99})
    tracker = Tracker(changed, context_for(tmp_path))
    assert tracker.close()
    (run,) = runs_of(uri)
    # MLflow keeps the first value; config.yaml has the last
    assert run.data.params["max_steps"] == "None"


def test_the_tag_decides_which_run_it_is(tmp_path, uri):
    first = Tracker(config_for(uri), context_for(tmp_path, "a", **{"loptune.run": "sweep/1"}))
    again = Tracker(config_for(uri), context_for(tmp_path, "b", **{"loptune.run": "sweep/1"}))
    other = Tracker(config_for(uri), context_for(tmp_path, "c"))
    assert first.mlflow_run_id == again.mlflow_run_id != other.mlflow_run_id
    for tracker in (first, again, other):
        tracker.close()
    assert len(runs_of(uri)) == 2


def test_a_run_that_was_deleted_and_started_again_is_another_run(tmp_path, uri):
    first = Tracker(config_for(uri), context_for(tmp_path, "a"))
    first.close()
    again = Tracker(config_for(uri), context_for(tmp_path, "a"))
    again.close()
    shutil.rmtree(first.run_dir)
    changed = config_for(uri).model_copy(update={"max_steps": 99})
    new = Tracker(changed, context_for(tmp_path, "a"))
    new.close()
    assert first.mlflow_run_id == again.mlflow_run_id != new.mlflow_run_id
    assert [run.data.params["max_steps"] for run in runs_of(uri)].count("99") == 1


def test_a_copied_folder_is_another_run_and_a_moved_one_is_the_same(tmp_path, uri):
    original = Tracker(config_for(uri), context_for(tmp_path, "a"))
    original.log({"policy/loss": 0.5}, 1)
    original.close()
    context = context_for(tmp_path, "b")
    shutil.copytree(original.run_dir, context.run_dir)
    copy = Tracker(config_for(uri), context)
    copy.log({"policy/loss": 0.25}, 2)
    copy.close()
    assert history(uri, original.mlflow_run_id, "policy/loss") == [(1, 0.5)]
    assert history(uri, copy.mlflow_run_id, "policy/loss") == [(1, 0.5), (2, 0.25)]
    moved = context_for(tmp_path, "c")
    original.run_dir.rename(moved.run_dir)
    same = Tracker(config_for(uri), moved)
    same.close()
    assert same.mlflow_run_id == original.mlflow_run_id


def test_offline_then_upload(tmp_path, uri):
    tracker = Tracker(config_for(uri, offline=True), context_for(tmp_path))
    tracker.log({"policy/loss": 0.5}, 1)
    tracker.log_completions([{"text": "a"}], 1)
    assert tracker.mlflow_run_id is None
    assert tracker.close("FINISHED") is True
    assert has_unsent(tracker.run_dir)

    run_id = upload(tracker.run_dir)
    assert upload(tracker.run_dir) == run_id  # nothing twice
    assert history(uri, run_id, "policy/loss") == [(1, 0.5)]
    (run,) = runs_of(uri)
    assert run.info.status == "FINISHED" and run.info.run_name == "run-1"
    assert "mlflow.loggedArtifacts" in run.data.tags
    assert not has_unsent(tracker.run_dir)


def test_a_short_run_leaves_its_record_to_upload(tmp_path, uri):
    tracker = Tracker(
        config_for(uri), context_for(tmp_path), must_connect=False, upload_after_s=3600
    )
    tracker.log({"policy/loss": 0.5}, 1)
    assert tracker.close("FINISHED") is True
    assert has_unsent(tracker.run_dir) and tracker._state.run_id is None
    assert history(uri, upload(tracker.run_dir), "policy/loss") == [(1, 0.5)]
    assert [run.info.status for run in runs_of(uri)] == ["FINISHED"]


def test_a_long_run_is_uploaded_while_it_runs(tmp_path, uri):
    tracker = Tracker(
        config_for(uri), context_for(tmp_path), must_connect=False, upload_after_s=0.01
    )
    tracker.log({"policy/loss": 0.5}, 1)
    while tracker._state.metrics_sent == 0:
        time.sleep(0.05)
    assert [run.info.status for run in runs_of(uri)] == ["RUNNING"]
    assert tracker.close("FINISHED") is True
    assert not has_unsent(tracker.run_dir)


def test_upload_of_a_folder_without_a_run(tmp_path):
    with refused("no-such-run", MissingError, names=("tracking.json",)):
        upload(tmp_path)


def test_locked_database_while_training_loses_nothing(tmp_path, uri, caplog):
    tracker = Tracker(config_for(uri), context_for(tmp_path), close_limit_s=1.0)
    lock_owner = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    lock_owner.execute("BEGIN EXCLUSIVE")
    for step in range(5):
        tracker.log({"policy/loss": step}, step)
    assert tracker.close("FINISHED") is False
    assert f"MLflow at {uri}" in caplog.text and "trainer upload" in caplog.text
    assert has_unsent(tracker.run_dir)
    lock_owner.execute("ROLLBACK")
    lock_owner.close()
    (command,) = re.findall(r"trainer upload .*", caplog.text)
    assert main(shlex.split(command)[1:]) == 0
    (run,) = runs_of(uri)
    assert run.info.status == "FINISHED"
    assert [step for step, _ in history(uri, run.info.run_id, "policy/loss")] == list(range(5))


def test_a_run_begins_without_mlflow_and_is_sent_once_it_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "UPLOAD_INTERVAL_S", 0.05)
    tracker = Tracker(
        config_for(f"sqlite:///{tmp_path}/mlflow.db"), context_for(tmp_path), must_connect=False
    )
    assert tracker.mlflow_run_id is None
    for step in (1, 2, 3):
        tracker.log({"policy/loss": step}, step)
    uri = sqlite_store(tmp_path)
    tracker.log({"policy/loss": 4}, 4)
    assert tracker.close() and tracker.mlflow_run_id
    assert history(uri, tracker.mlflow_run_id, "policy/loss") == [
        (step, float(step)) for step in (1, 2, 3, 4)
    ]
    (run,) = runs_of(uri)
    assert run.data.params["algorithm.ar_alpha"] == "0.0"


def test_a_run_folder_that_vanishes_is_not_made_anew(tmp_path, uri):
    tracker = Tracker(config_for(uri), context_for(tmp_path))
    tracker.log({"policy/loss": 1}, 1)
    tracker.run_dir.rename(tmp_path / "moved")
    with refused("not-written", StorageError, names=("step 2",)) as caught:
        tracker.log({"policy/loss": 2}, 2)
    assert str(tracker.run_dir) in caught.value.where
    assert tracker.close("FAILED") is False
    assert not tracker.run_dir.exists()
    assert [line["step"] for line in lines_of(tmp_path / "moved")] == [1]
