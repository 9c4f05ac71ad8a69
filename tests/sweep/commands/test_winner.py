from pathlib import Path

import pytest

from sweep.cli import main
from sweep.record.folder import sweep_folder
from tests.sweep.ended_sweeps import SCORES, write_sweep
from trainer.config.schema import load_config


def test_export_writes_a_file_that_the_trainer_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "demo", SCORES, seeds=[0, 1])
    output = tmp_path / "best.yaml"
    arguments = ["export", "demo", "--runs-dir", str(tmp_path), "--output", str(output)]
    assert main(arguments) == 0
    config = load_config(str(output))
    assert config.algorithm.ar_alpha == 0.2
    assert config.max_steps == 4
    assert f"trainer run {output}" in capsys.readouterr().out
    assert main(arguments) == 2  # never overwritten


def test_export_without_a_winner_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "demo", {0: {0: "out of memory"}})
    assert main(["export", "demo", "--runs-dir", str(tmp_path)]) == 3
    assert "no configuration of demo is complete yet" in capsys.readouterr().err


def test_a_budget_in_hours_that_the_trials_do_not_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(tmp_path, "demo", SCORES)
    assert main(["decide", "demo", "--gpu-hours", "2", "--runs-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: a budget in GPU hours, and the trials are counted in CPU hours",
        f"where: {sweep_folder(tmp_path, 'demo').space}, key resources.gpus_per_trial",
        "next:  write --cpu-hours N",
    ]
