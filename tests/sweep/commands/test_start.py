import json
import subprocess
import sys

import pytest

from sweep.record.folder import sweep_folder
from tests.paths import ROOT
from tests.sweep.ended_sweeps import SCORES, write_sweep
from tests.sweep.harness import write_space


def test_plan_counts_trials_slots_and_gpu_hours(tmp_path, typed):
    space = write_space(tmp_path / "space.yaml", seeds=[0, 1, 2])
    line = f"sweep plan {space} --runs-dir {tmp_path}/runs --cpus 2"
    plan = json.loads(typed(f"{line} --step-seconds 10 --json"))
    assert (plan["configurations"], plan["trials"]) == (3, 9)
    assert (plan["slots"], plan["waiting"]) == (2, 7)
    assert plan["seconds"] == 5 * 4 * 10  # nine trials of four steps, two at a time
    assert plan["gpu_hours"] == 0
    assert not (tmp_path / "runs").exists()
    out = " ".join(typed(line).split())
    assert "9: 3 configurations x 3 seeds" in out
    forecast = out.partition("forecast ")[2]
    assert forecast.startswith("unknown") and "--step-seconds" in forecast


def test_plan_measures_a_step_in_earlier_sweeps(tmp_path, typed):
    write_sweep(tmp_path, "before", SCORES)
    space = write_space(tmp_path / "space.yaml")
    plan = json.loads(typed("sweep plan", space, "--json"))
    assert (plan["step_seconds"], plan["step_source"]) == (2.0, "measured in before")


def test_plan_counts_the_runs_of_sweep_noise_and_leaves_out_repeated_seeds(tmp_path, typed):
    write_sweep(tmp_path / "noise" / "runs", "seeds-a", {0: {0: 0.3, 1: 0.4, 2: 0.5}})
    write_sweep(tmp_path / "noise" / "runs", "again-a", {0: {0: 0.0, 1: 0.9}})
    space = write_space(tmp_path / "space.yaml")
    words = ["--step-seconds", "1", "--json"]
    assert json.loads(typed("sweep plan", space, *words))["noise"] is None
    plan = json.loads(typed("sweep plan", space, *words, "--noise", tmp_path / "noise"))
    assert plan["noise"]["sd"] == pytest.approx(0.1)
    assert plan["noise"]["source"] == "measured in seeds-a, not paired"


def test_plan_imports_neither_ray_nor_torch(tmp_path):
    space = write_space(tmp_path / "space.yaml")
    program = (
        "import sys; from sweep.cli import main; main(sys.argv[1:]); "
        "print([name for name in ('ray', 'torch', 'mlflow', 'optuna') if name in sys.modules])"
    )
    words = f"plan {space} --runs-dir {tmp_path} --step-seconds 1".split()
    command = [sys.executable, "-c", program, *words]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert out.splitlines()[-1] == "[]"


def test_command_line_overrides_reach_the_space(tmp_path, typed):
    space = write_space(tmp_path / "space.yaml")
    line = f"sweep plan {space} --step-seconds 1 --json"
    plan = json.loads(typed(f"{line} search.configurations=3 --name off"))
    assert (plan["name"], plan["configurations"]) == ("off", 5)  # which is false in YAML
    plan = json.loads(typed(f"{line} seeds=[0,1] search.configurations=0"))
    assert plan["trials"] == 4
    refused = typed(f"sweep plan {space} search.configuration=3", code=2)
    assert "[unknown-key]" in refused and " configurations?" in refused


def test_an_existing_name_is_not_run_again(tmp_path, typed):
    write_sweep(tmp_path, "fake", SCORES)
    space = write_space(tmp_path / "space.yaml")
    assert "resume fake" in typed("sweep run", space, code=2)


def test_a_confirmation_cannot_be_extended(tmp_path, typed):
    confirms = {"sweep": "fake", "configurations": [0, 1]}
    write_sweep(tmp_path, "fake-confirm", {0: {0: 0.5}, 1: {0: 0.6}}, confirms=confirms)
    refused = typed("sweep extend fake-confirm --configurations 2", code=2)
    assert "fake-confirm" in refused and "[nothing-to-extend]" in refused


def test_a_sweep_of_a_whole_grid_cannot_be_extended(tmp_path, typed):
    space = {
        "parameters": {"algorithm.ar_alpha": {"choice": [0.0, 0.1, 0.2, 0.3, 0.4]}},
        "search": {"sampler": "grid"},
        "baselines": [],
    }
    write_sweep(tmp_path, "fake", {0: {0: 0.5}}, **space)
    before = sweep_folder(tmp_path, "fake").space.read_text()
    what, where, hint = typed("sweep extend fake --configurations 2", code=2).splitlines()
    assert what.startswith("error: sweep fake ")
    assert where == f"where: {sweep_folder(tmp_path, 'fake').space}, key search.configurations"
    assert "resume fake" in hint and "new sweep" in hint
    assert sweep_folder(tmp_path, "fake").space.read_text() == before
