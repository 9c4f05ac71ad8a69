import os
import socket
import subprocess
import sys

import pytest

from sweep.cli import main as sweep
from tests.paths import ROOT
from tests.sweep.ended_sweeps import SCORES, write_sweep
from tests.tables import table
from trainer.cli import main
from trainer.commands.init import write_project


@pytest.mark.parametrize(("words", "code", "message"), table("preflight_errors"))
def test_what_fails_soon_fails_before_the_model(
    tmp_path, monkeypatch, capsys, words, code, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaving.py").write_text("import os\nos._exit(3)\n")
    (tmp_path / "lowest.py").write_text("MINIMUM = 'low'\ndef exact(text, answer):\n    return 1\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    monkeypatch.setattr("trainer.tracking.writers.is_installed", lambda name: False)
    monkeypatch.setattr("trainer.loop.load_models", lambda *_: pytest.fail("came to the model"))
    assert main(["run", "tiny_kk", "--name", "r", *words]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "runs" / "r").exists()


@pytest.mark.parametrize("words", [["serve", "tiny_kk"], ["ui"], ["ui", "s"]])
def test_a_port_in_use_is_refused_before_anything_is_loaded(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "runs", "s", SCORES)
    (tmp_path / "runs" / "mlflow.db").touch()
    for place in ("trainer.commands.runs.connect", "sweep.commands.report.save_view"):
        monkeypatch.setattr(place, lambda *_: pytest.fail("MLflow was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert (sweep if "s" in words else main)([*words, "--port", str(port)]) == 2
    error, _, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: port {port} is in use [port-unusable]"
    assert hint.endswith(f"choose another port: --port {port + 1}")


@pytest.mark.parametrize(
    ("closed", "mode", "code"),
    [("train.jsonl", 0, 4), ("run.yaml", 0, 2), ("my_rewards.py", 0, 4), ("runs", 0o555, 4)],
)
def test_what_may_not_be_read_or_written_is_named(tmp_path, closed, mode, code):
    write_project(tmp_path, "gpt2")
    (tmp_path / "runs").mkdir()
    (tmp_path / closed).chmod(mode)
    # Root may read everything: only without these capabilities is it a user like any other.
    bound = (
        ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    )
    if bound and subprocess.run([*bound, "true"], capture_output=True).returncode:
        pytest.skip("root cannot give its capabilities up here")
    command = [*bound, sys.executable, "-m", "trainer", "run", "run.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == code, ended.stderr
    assert closed in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize("missing", ["data.train=own.jsonl", "model.name_or_path=./own"])
def test_a_missing_file_is_found_next_to_the_run_file(tmp_path, monkeypatch, capsys, missing):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "con figs"
    folder.mkdir()
    for name in ("own", "own.jsonl"):
        (folder / name).touch()
    (folder / "run.yaml").write_text("extends: tiny_kk\n")
    assert main(["run", "con figs/run.yaml", "--name", "r", missing]) == 3
    printed = capsys.readouterr().err
    assert "next to con figs/run.yaml" in printed
    assert printed.splitlines()[-1].endswith(": cd 'con figs'")
