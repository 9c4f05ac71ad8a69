import json
from pathlib import Path

import pytest

from sweep.cli import main
from sweep.record.folder import command, existing_sweep
from tests.sweep.ended_sweeps import SCORES, write_sweep
from tests.sweep.harness import SHORT
from trainer.config.schema import load_config
from trainer.tracking import mlflow_store

OFFLINE = {"preset": "tiny_kk", "overrides": {**SHORT, "tracking.offline": True}}


@pytest.fixture(autouse=True)
def no_store_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def test_an_offline_sweep_has_its_report_and_no_page_of_mlflow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(tmp_path, "demo", SCORES, trainer=OFFLINE)
    assert main(["report", "demo", "--runs-dir", str(tmp_path)]) == 0
    report = tmp_path / "demo" / "report"
    assert capsys.readouterr().out.strip() == str(report / "report.html")
    assert {path.name for path in report.iterdir()} == {"report.html", "trials.csv", "best.yaml"}
    assert load_config(str(report / "best.yaml")).algorithm.ar_alpha == 0.1
    assert main(["ui", "demo", "--runs-dir", str(tmp_path)]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "error: sweep demo ran offline",
        f"where: {tmp_path / 'demo'}",
        f"next:  {command('upload', existing_sweep(tmp_path, 'demo'))} sends it to MLflow",
    ]


def test_a_store_that_has_gone_costs_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "demo", SCORES)
    assert main(["report", "demo", "--runs-dir", str(tmp_path)]) == 0
    assert (tmp_path / "demo" / "report" / "report.html").is_file()
    assert not list(tmp_path.rglob("*.db"))
    assert main(["ui", "demo", "--runs-dir", str(tmp_path)]) == 4
    assert "error: no MLflow store" in capsys.readouterr().err


def test_a_store_that_does_not_answer_costs_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mlflow_store, "START_LIMIT_S", 0.1)
    server = {"preset": "tiny_kk", "overrides": {**SHORT, "tracking.uri": "http://127.0.0.1:9"}}
    write_sweep(tmp_path, "demo", SCORES, trainer=server)
    assert main(["report", "demo", "--runs-dir", str(tmp_path)]) == 4
    assert (tmp_path / "demo" / "report" / "report.html").is_file()
    assert (tmp_path / "demo" / "report" / "best.yaml").is_file()


def test_evidence_of_runs_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path / "ours", "demo", SCORES, seeds=[0, 1])
    confirms = {"sweep": "demo", "configurations": [0, 2]}
    fresh = {0: {2: 0.5, 3: 0.52, 4: 0.51}, 1: {2: 0.6, 3: 0.63, 4: 0.61}}
    write_sweep(tmp_path / "ours", "demo-confirm", fresh, seeds=[2, 3, 4], confirms=confirms)
    write_sweep(tmp_path / "theirs", "new", SCORES)
    folders = [str(tmp_path / name) for name in ("ours", "theirs")]
    assert main(["evidence", *folders]) == 0
    table = capsys.readouterr().out
    assert "grpo + AR" in table and "+0.103" in table
    assert table.splitlines()[-1] == "not counted: every rule of new, not confirmed on fresh seeds"
    assert main(["evidence", *folders, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["sweep"], one["seeds"]) for one in found["settings"]] == [("demo", 3)]
    assert main(["evidence", str(tmp_path / "nowhere")]) == 3
