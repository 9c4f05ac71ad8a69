import json
import subprocess
import sys
from pathlib import Path

import pytest

from sweep.cli import main
from sweep.record.folder import sweep_folder
from tests.paths import ROOT
from tests.sweep.ended_sweeps import SCORES, write_sweep
from tests.sweep.harness import write_space


def test_plan_counts_trials_slots_and_gpu_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = write_space(tmp_path / "space.yaml", seeds=[0, 1, 2])
    arguments = ["plan", str(space), "--runs-dir", str(tmp_path / "runs"), "--cpus", "2"]
    assert main([*arguments, "--step-seconds", "10", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["configurations"], plan["trials"]) == (3, 9)
    assert (plan["slots"], plan["waiting"]) == (2, 7)
    assert plan["seconds"] == 5 * 4 * 10  # nine trials of four steps, two at a time
    assert plan["gpu_hours"] == 0
    assert not (tmp_path / "runs").exists()
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "9: 3 configurations x 3 seeds" in out
    assert "unknown: no sweep has timed a training step. Give --step-seconds" in " ".join(
        out.split()
    )


def test_plan_measures_a_step_in_earlier_sweeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(tmp_path, "before", SCORES)
    space = write_space(tmp_path / "space.yaml")
    assert main(["plan", str(space), "--runs-dir", str(tmp_path), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["step_seconds"], plan["step_source"]) == (2.0, "measured in before")


def test_plan_imports_neither_ray_nor_torch(tmp_path: Path) -> None:
    space = write_space(tmp_path / "space.yaml")
    program = (
        "import sys; from sweep.cli import main; main(sys.argv[1:]); "
        "print([name for name in ('ray', 'torch', 'mlflow', 'optuna') if name in sys.modules])"
    )
    out = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "plan",
            str(space),
            "--runs-dir",
            str(tmp_path),
            "--step-seconds",
            "1",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    assert out.splitlines()[-1] == "[]"


def test_command_line_overrides_reach_the_space(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = write_space(tmp_path / "space.yaml")
    options = ["--runs-dir", str(tmp_path), "--step-seconds", "1", "--json"]
    assert main(["plan", str(space), "search.configurations=3", "--name", "off", *options]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["name"], plan["configurations"]) == ("off", 5)  # which is false in YAML
    assert main(["plan", str(space), "seeds=[0,1]", *options, "search.configurations=0"]) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 4
    assert main(["plan", str(space), "search.configuration=3"]) == 2
    assert "did you mean configurations?" in capsys.readouterr().err


def test_an_existing_name_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sweep(tmp_path, "fake", SCORES)
    space = write_space(tmp_path / "space.yaml")
    assert main(["run", str(space), "--runs-dir", str(tmp_path)]) == 2
    assert "resume fake" in capsys.readouterr().err


def test_a_sweep_of_a_whole_grid_cannot_be_extended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {
        "parameters": {"algorithm.ar_alpha": {"choice": [0.0, 0.1, 0.2, 0.3, 0.4]}},
        "search": {"sampler": "grid"},
        "baselines": [],
    }
    write_sweep(tmp_path, "fake", {0: {0: 0.5}}, **space)
    before = sweep_folder(tmp_path, "fake").space.read_text()
    assert main(["extend", "fake", "--configurations", "2", "--runs-dir", str(tmp_path)]) == 2
    what, where, hint = capsys.readouterr().err.splitlines()
    assert what == "error: sweep fake tries every point of its grid: there are no more to add"
    assert where == f"where: {sweep_folder(tmp_path, 'fake').space}, key search.configurations"
    assert "resume fake" in hint and "finer ranges" in hint
    assert sweep_folder(tmp_path, "fake").space.read_text() == before
