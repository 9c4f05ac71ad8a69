import itertools

import pytest

from dashboards.trial import TrialRecord
from sweep.tracking import parent_run
from sweep.tracking.outcomes import EndedTrial
from sweep.tracking.parent_run import open_parent_run
from tests.trainer.tracking.store import config_for, context_for, runs_of, sqlite_store
from trainer.tracking.tracker import Tracker


@pytest.fixture
def uri(tmp_path):
    return sqlite_store(tmp_path)


@pytest.mark.parametrize("singly", [20, 0], ids=["one by one", "all"])
def test_parent_run_is_found_again_and_reconciles_its_trials(tmp_path, uri, singly, monkeypatch):
    monkeypatch.setattr(parent_run, "MAX_SINGLE_QUERIES", singly)
    parent = open_parent_run(uri, "exp", "demo", {"stage": "first"}, "1")
    place = {"loptune.sweep": "demo"}
    tags = {**place, "loptune.run": "demo/t1", "mlflow.parentRunId": parent.run_id}
    trial = Tracker(config_for(uri), context_for(tmp_path, "t1", **tags))
    trial.log({"policy/loss": 1.0}, 1)
    outcomes = [
        EndedTrial(
            TrialRecord("t1", "0", "0", score=0.5), "t1", {**place, "loptune.run": "demo/t1"}
        ),
        EndedTrial(
            TrialRecord(
                name="t2",
                configuration="1",
                seed="0",
                state="FAIL",
                reason="diverged at step 3",
                parameters={"algorithm.ar_alpha": 0.9},
            ),
            "t2",
            {**place, "loptune.run": "demo/t2"},
        ),
    ]
    assert parent.reconcile(outcomes, create=False) == 1  # ranks live: their tracker makes the run
    assert parent.reconcile(outcomes) == 1
    assert parent.reconcile(outcomes) == 0

    again = open_parent_run(uri, "exp", "demo", {"stage": "second"}, "1")
    assert again.run_id == parent.run_id
    again.log_artifact(tmp_path / "trials" / "t1" / "config.yaml", "report")
    again.finish("FINISHED")
    runs = {run.info.run_name: run for run in runs_of(uri)}
    assert len(runs) == 3
    assert (
        runs["sweep demo"].data.tags["stage"] == "second"
        and runs["sweep demo"].info.status == "FINISHED"
    )
    assert runs["t1"].info.status == "FINISHED" and runs["t1"].data.metrics["final/score"] == 0.5
    assert runs["t2"].info.status == "FAILED"
    assert runs["t2"].data.tags["loptune.reason"] == "diverged at step 3"
    assert runs["t2"].data.tags["mlflow.note.content"] == "diverged at step 3"
    assert "mlflow.note.content" not in runs["t1"].data.tags
    assert runs["t2"].data.params["algorithm.ar_alpha"] == "0.9"
    retried = TrialRecord("t2", "1", "0", score=0.4, parameters={"algorithm.ar_alpha": 0.9})
    assert again.reconcile([EndedTrial(retried, "t2", {**place, "loptune.run": "demo/t2"})]) == 1
    (now,) = (run for run in runs_of(uri) if run.info.run_name == "t2")
    assert (now.data.tags["loptune.reason"], now.data.tags["mlflow.note.content"]) == ("", "")
    again.client.set_tag(now.info.run_id, "mlflow.note.content", "a note of the user's")
    assert again.reconcile([EndedTrial(retried, "t2", {**place, "loptune.run": "demo/t2"})]) == 0
    assert runs["t2"].data.tags["mlflow.parentRunId"] == parent.run_id
    trial.close()


def test_what_takes_long_says_how_far_it_has_come(monkeypatch, capsys):
    clock = itertools.count(0.0, 6.0)
    monkeypatch.setattr(parent_run.time, "monotonic", lambda: next(clock))
    assert list(parent_run.with_progress("abcde", "sent to MLflow")) == list("abcde")
    assert capsys.readouterr().out.splitlines() == [
        "sent to MLflow: 1 of 5 trials",
        "sent to MLflow: 3 of 5 trials",
    ]
