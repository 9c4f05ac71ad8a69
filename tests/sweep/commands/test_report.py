import json
from dataclasses import replace

import pytest

from dashboards.sources.stored import RESULTS_FILE, pack
from sweep.cli import main
from sweep.tracking.parent_run import open_parent_run
from sweep.tracking.publish_report import summary, write_report
from tests.dashboards.pictures.test_tournament import confirmed
from tests.dashboards.table import results_of
from tests.dashboards.test_headline import on_fresh_seeds
from tests.sweep.ended_sweeps import write_sweep
from tests.sweep.harness import SHORT
from tests.trainer.tracking.store import sqlite_store
from trainer.config.schema import load_config
from trainer.tracking import mlflow_store

OFFLINE = {"preset": "tiny_kk", "overrides": {**SHORT, "tracking.offline": True}}


@pytest.fixture(autouse=True)
def no_store_of_the_environment(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_an_offline_sweep_has_its_report_and_no_page_of_mlflow(tmp_path, typed):
    sweep = write_sweep(tmp_path, trainer=OFFLINE)
    report = tmp_path / "demo" / "report"
    best, *_, page = typed("sweep report demo").splitlines()
    assert best.startswith("best: configuration 2") and page == str(report / "report.html")
    assert {path.name for path in report.iterdir()} == {
        "report.html",
        "trials.csv",
        "results.json.gz",
        "best.yaml",
    }
    assert load_config(str(report / "best.yaml")).algorithm.ar_alpha == 0.2
    assert typed("sweep ui demo", code=3).splitlines() == [
        "error: sweep demo ran offline [sweep-offline]",
        f"where: {tmp_path / 'demo'}",
        f"next:  {sweep.command('upload')} sends it to MLflow",
    ]


def test_the_summary_is_that_of_fresh_seeds_where_they_were_run():
    searched = on_fresh_seeds([0.5, 0.52, 0.54], [0.4, 0.42, 0.441])
    numbers = summary(searched)
    assert numbers["final/score"] == pytest.approx(0.52)  # of the baseline, which is kept
    assert numbers["sweep/gain_over_baseline"] == pytest.approx(-0.1, abs=0.001)
    assert summary(replace(searched, fresh=None))["sweep/gain_over_baseline"] == pytest.approx(0.1)
    tournament = summary(confirmed(gain=0.1))
    assert not {"sweep/gain_over_baseline", "sweep/p_value", "final/score"} & set(tournament)


def test_a_best_that_the_evidence_no_longer_names_is_removed(tmp_path, typed):
    sweep = write_sweep(tmp_path, trainer=OFFLINE)
    typed("sweep report demo")
    stale = tmp_path / "demo" / "report" / "best.yaml"
    assert stale.is_file()
    undecided = on_fresh_seeds([0.5, 0.6, 0.7], [0.55, 0.5, 0.8])
    write_report(sweep, undecided)
    assert not stale.exists()


def test_a_store_that_has_gone_costs_no_report(tmp_path, typed):
    write_sweep(tmp_path)
    typed("sweep report demo")
    assert (tmp_path / "demo" / "report" / "report.html").is_file()
    assert not list(tmp_path.rglob("*.db"))
    assert "[no-mlflow-store]" in typed("sweep ui demo", code=4)


def test_a_store_that_does_not_answer_costs_no_report(tmp_path, monkeypatch, typed):
    monkeypatch.setattr(mlflow_store, "START_LIMIT_S", 0.1)
    server = {"preset": "tiny_kk", "overrides": {**SHORT, "tracking.uri": "http://127.0.0.1:9"}}
    write_sweep(tmp_path, trainer=server)
    typed("sweep report demo", code=4)
    assert (tmp_path / "demo" / "report" / "report.html").is_file()
    assert (tmp_path / "demo" / "report" / "best.yaml").is_file()


def test_evidence_of_a_store(tmp_path, monkeypatch, capsys, typed):
    uri = sqlite_store(tmp_path / "store")
    parent = open_parent_run(uri, "demo", "demo", {}, "1")
    file = tmp_path / RESULTS_FILE
    file.write_bytes(pack(results_of()))
    parent.log_artifact(file)
    open_parent_run(uri, "other", "without-results", {}, "1")
    file.write_bytes(b"of another version")
    open_parent_run(uri, "old", "old", {}, "1").log_artifact(file)
    open_parent_run(uri, "demo", "demo", {}, "2").log_artifact(file)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert main(["evidence"]) == 0
    printed = capsys.readouterr()
    left_out = printed.out.splitlines()[-1]
    assert left_out.startswith("excluded: ") and "demo" in left_out
    assert "skipped: old; " in printed.err and "sweep report NAME" in printed.err
    assert "skipped: demo; " in printed.err and parent.run_id in printed.err
    left_out = json.loads(typed("sweep evidence --json"))["left_out"]
    assert [row["sweep"] for row in left_out] == ["demo"]
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert "[no-mlflow-store]" in typed("sweep evidence", code=4)
    of_store = json.loads(typed("sweep evidence --json", uri))
    assert [row["sweep"] for row in of_store["left_out"]] == ["demo"]
