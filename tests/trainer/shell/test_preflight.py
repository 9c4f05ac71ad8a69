import os
import socket
import subprocess
import sys

import pytest

from sweep.cli import main as sweep
from tests.paths import ROOT
from tests.sweep.ended_sweeps import SCORES, write_sweep
from trainer.cli import main
from trainer.commands.init import write_project

# What is wrong -> exit code and words, all of it before the model is loaded.
WRONG = [
    (["data.train=absent.jsonl"], 3, "there is no such data file"),
    (["data.train=broken.jsonl"], 2, "not JSON"),
    (["reward.functions={leaving: 1}"], 2, "no reward named leaving"),
    (
        ["reward.functions={leaving:exact: 1}"],
        2,
        "ended (exit 3) at its start: leaving:exact does not import",
    ),
    (["tracking.uri=foo://bar"], 2, "MLflow has no store such as foo://bar"),
    (["tracking.uri=http://[::1"], 2, "MLflow has no store such as http://[::1"),
    (["tracking.uri=127.0.0.1:5000"], 2, "MLflow has no store such as 127.0.0.1:5000"),
    (
        ["reward.functions={lowest:exact: 1}"],
        2,
        "reward lowest:exact: MINIMUM is 'low', not a number",
    ),
    (["tracking.report_to=[trackio]"], 2, "trackio is not installed"),
    (["--runs-dir", "broken.jsonl"], 4, "cannot write the run's folder"),
    (["--runs-dir", "broken.jsonl/runs"], 4, "cannot write the run's folder"),
]


@pytest.mark.parametrize(("words", "code", "message"), WRONG)
def test_what_fails_soon_fails_before_the_model(
    tmp_path, monkeypatch, capsys, words, code, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leaving.py").write_text("import os\nos._exit(3)\n")
    (tmp_path / "lowest.py").write_text("MINIMUM = 'low'\ndef exact(text, answer):\n    return 1\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    monkeypatch.setattr("trainer.tracking.writers.find_spec", lambda name: None)
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
    assert error == f"error: port {port} is in use" and hint.endswith(
        f"{' '.join(words)} --port {port + 1}"
    )


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
