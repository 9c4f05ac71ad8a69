"""What commands list fits 100 columns where there is no terminal."""

import json

import pytest

from sweep.cli import main as sweep
from tests.sweep.ended_sweeps import SCORES, write_sweep
from trainer.cli import main as trainer

COLUMNS = 100

LISTINGS = [
    (trainer, "presets"),
    (trainer, "options"),
    (trainer, "options optim"),
    (trainer, "metrics"),
    (trainer, "ls"),
    (trainer, "status run"),
    (sweep, "ls"),
    (sweep, "status wide"),
    (sweep, "plan knights_knaves_3b_lora"),
    (sweep, "plan ablation_order"),
    (sweep, "plan tournament"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parameters = {
        "algorithm.ar_alpha": {"uniform": [0.0, 0.5]},
        "optim.lr": {"loguniform": [1e-6, 1e-4]},
        "rollout.temperature": {"uniform": [0.6, 1.2]},
    }
    baselines = [{"algorithm.ar_alpha": 0.1, "optim.lr": 1e-5, "rollout.temperature": 1.0}]
    write_sweep(tmp_path / "runs", "wide", SCORES, parameters=parameters, baselines=baselines)
    run = tmp_path / "runs" / "run"
    run.mkdir()
    (run / "config.yaml").write_text("extends: tiny_kk\n")
    times = {
        f"time/{name}": 1.0 for name in ("rollout", "reward", "logprobs", "update", "sync", "step")
    }
    evaluated = {"eval/accuracy": 0.5, "rollout/reward": 1.5}
    (run / "metrics.jsonl").write_text(
        json.dumps({"step": 1, "time": 1.0, **times, **evaluated}) + "\n"
    )
    return tmp_path


@pytest.mark.parametrize(("main", "command"), LISTINGS)
def test_every_line_fits(folder, capsys, main, command):
    assert main(command.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    sentences = " " * 7  # below the best: prose, which a terminal wraps
    assert [
        line for line in lines if len(line.rstrip()) > COLUMNS and not line.startswith(sentences)
    ] == []
