import json
from pathlib import Path

import pytest

from sweep.cli import main
from sweep.record.folder import command, existing_sweep
from tests.dashboards import synthetic
from tests.sweep.ended_sweeps import SCORES, write_sweep
from tests.sweep.harness import SHORT

OFFLINE = {"preset": "tiny_kk", "overrides": {**SHORT, "tracking.offline": True}}


@pytest.fixture(autouse=True)
def no_store_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.mark.parametrize("verb", ["report", "ui"])
def test_an_offline_sweep_has_no_pages_yet(tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "demo", SCORES, trainer=OFFLINE)
    assert main([verb, "demo", "--runs-dir", str(tmp_path)]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "error: sweep demo ran offline",
        f"where: {tmp_path / 'demo'}",
        f"next:  {command('upload', existing_sweep(tmp_path, 'demo'))} sends it to MLflow",
    ]


def test_a_store_that_has_gone_exits_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "demo", SCORES)
    assert main(["report", "demo", "--runs-dir", str(tmp_path)]) == 4
    assert "error: no MLflow store" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.db"))


def test_evidence_of_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo_uri = synthetic.write_sweep(tmp_path / "store")
    assert main(["evidence", demo_uri]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "not counted: every rule of demo, not confirmed on fresh seeds"
    assert main(["evidence", demo_uri, "--json"]) == 0
    assert [one["sweep"] for one in json.loads(capsys.readouterr().out)["left_out"]] == ["demo"]
    assert main(["evidence", "--runs-dir", str(tmp_path)]) == 4
    assert "no MLflow store" in capsys.readouterr().err
