import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sweep.cli import main
from sweep.record.folder import sweep_folder
from tests.paths import ROOT
from tests.sweep.harness import SEVERAL_RANKS, write_space
from trainer.config.schema import load_config

FOUR_GPUS = {"gpus_per_trial": 4, "workers_per_trial": 4}


def write_sweep(runs: Path, name: str, scores: Mapping[int, Mapping[int, float | str]], **space: Any) -> None:
    """A sweep's folder as a driver leaves it: configuration -> seed -> score or reason of failure."""
    folder = sweep_folder(runs, name)
    folder.root.mkdir(parents=True)
    write_space(folder.space, name=name, **space)
    events: list[dict[str, Any]] = []
    for number, seeds in scores.items():
        resolved = {"algorithm.ar_alpha": number / 10}
        events.append(
            {
                "event": "configuration",
                "configuration": number,
                "origin": "baseline",
                "parameters": resolved,
                "resolved": resolved,
                "fingerprint": str(number),
                "attributes": {},
                "time": 1.0,
            }
        )
        for seed, score in seeds.items():
            failed = isinstance(score, str)
            events.append(
                {
                    "event": "result",
                    "trial_id": f"{number}{seed}",
                    "configuration": number,
                    "seed": seed,
                    "state": "FAIL" if failed else "COMPLETE",
                    "score": None if failed else score,
                    "step": 4,
                    "reason": score if failed else "",
                    "time": 2.0,
                }
            )
            run_dir = folder.trial(f"c{number:03d}-s{seed}")
            run_dir.mkdir(parents=True)
            (run_dir / "metrics.jsonl").write_text(
                '{"step": 3, "time": 1.0, "time/step": 2.0}\n{"step": 4, "time": 3'
            )
    folder.ledger.write_text("".join(json.dumps(event) + "\n" for event in events))


SCORES: dict[int, dict[int, float | str]] = {
    0: {0: 0.5, 1: 0.6},
    1: {0: 0.9, 1: "diverged at step 3: policy/loss is nan"},
    2: {0: 0.7, 1: 0.6},
    3: {0: 0.8},
}


def test_plan_counts_trials_slots_and_gpu_hours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "unknown; say how long a training step takes with --step-seconds" in out


def test_plan_measures_a_step_in_earlier_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "before", SCORES)
    space = write_space(tmp_path / "space.yaml")
    assert main(["plan", str(space), "--runs-dir", str(tmp_path), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["step_seconds"], plan["step_source"]) == (2.0, "measured in before")


def test_plan_shows_a_trial_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = write_space(tmp_path / "space.yaml", resources=FOUR_GPUS, trainer=SEVERAL_RANKS)
    assert main(["plan", str(space), "--runs-dir", str(tmp_path), "--step-seconds", "90", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slots"] == 0
    assert main(["plan", str(space), "--runs-dir", str(tmp_path)]) == 0
    assert "none: a trial needs more than this machine has" in capsys.readouterr().out


def test_plan_imports_neither_ray_nor_torch(tmp_path: Path) -> None:
    space = write_space(tmp_path / "space.yaml")
    program = (
        "import sys; from sweep.cli import main; main(sys.argv[1:]); "
        "print([name for name in ('ray', 'torch', 'mlflow', 'optuna') if name in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, "plan", str(space), "--runs-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    assert out.splitlines()[-1] == "[]"


def test_four_gpus_on_a_machine_without_are_refused_before_ray(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    space = write_space(tmp_path / "space.yaml", resources=FOUR_GPUS, trainer=SEVERAL_RANKS)
    assert main(["run", str(space), "--runs-dir", str(tmp_path / "runs"), "--cpus", "8"]) == 3
    what, where, hint = capsys.readouterr().err.splitlines()
    assert what == "error: a trial needs 4 GPUs and 4 CPUs; present: 0 GPUs and 8 CPUs"
    assert where == "where: resources.gpus_per_trial"
    assert "--address" in hint
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["../x", "/x", "a\nb", "n" * 300])
def test_a_bad_name_exits_2_and_writes_nothing(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    space = write_space(tmp_path / "space.yaml")
    before = sorted(tmp_path.rglob("*"))
    for verb in (["run", str(space), "--name", name], ["resume", name], ["status", name], ["stop", name]):
        assert main([*verb, "--runs-dir", str(tmp_path / "runs")]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 3
    assert sorted(tmp_path.rglob("*")) == before


def test_an_existing_name_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "fake", SCORES)
    space = write_space(tmp_path / "space.yaml")
    assert main(["run", str(space), "--runs-dir", str(tmp_path)]) == 2
    assert "resume fake" in capsys.readouterr().err


def test_status_reads_ledger_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "demo", SCORES, seeds=[0, 1])
    assert main(["status", "demo", "--runs-dir", str(tmp_path), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    states = {trial["trial"]: trial["state"] for trial in status["trials"]}
    assert states["c001-s1"] == "FAIL"
    assert states["c003-s1"] == "WAITING"
    assert sum(state == "COMPLETE" for state in states.values()) == 6
    assert [trial["step"] for trial in status["trials"] if trial["trial"] == "c000-s0"] == [3]
    assert not status["running"]
    # Configuration 1 lost a seed and 3 misses one, so 2 wins with (0.7 + 0.6) / 2.
    assert (status["best"]["configuration"], status["best"]["score"]) == (2, pytest.approx(0.65))
    assert main(["status", "demo", "--runs-dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["trial", "state", "step", "score", "parameters", "reason"]
    assert lines[1] == ["c000-s0", "COMPLETE", "3/4", "0.5", "ar_alpha=0"]
    assert lines[4][:4] == ["c001-s1", "FAIL", "3/4", "ar_alpha=0.1"]
    assert "diverged at step 3: policy/loss is nan" in out
    assert "best: configuration 2  ar_alpha=0.2" in out


def test_the_best_of_a_loss_is_the_smallest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objective = {"metric": "eval/completion_length", "mode": "min"}
    write_sweep(tmp_path, "demo", SCORES, seeds=[0, 1], objective=objective)
    main(["status", "demo", "--runs-dir", str(tmp_path), "--json"])
    assert json.loads(capsys.readouterr().out)["best"]["configuration"] == 0


def test_ls_lists_every_sweep_even_a_broken_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "one", SCORES, seeds=[0, 1])
    write_sweep(tmp_path, "two", {0: {0: 0.5}, 1: {0: 0.4}, 2: {0: 0.1}})
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "space.lock.yaml").write_text("nonsense: [")
    assert main(["ls", "--runs-dir", str(tmp_path), "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert list(found) == ["one", "three", "two"]
    assert (found["two"]["state"], found["two"]["best"]) == ("done", 0.5)
    assert (found["one"]["ended"], found["one"]["planned"]) == (7, 6)
    assert "YAML" in found["three"]["state"]
    assert main(["ls", "--runs-dir", str(tmp_path / "none")]) == 0
    assert "no sweeps" in capsys.readouterr().out


def test_a_sweep_of_a_whole_grid_cannot_be_extended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = {
        "parameters": {"algorithm.ar_alpha": {"quniform": [0.0, 0.4, 0.1]}},
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


def test_stopping_a_sweep_that_does_not_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sweep(tmp_path, "demo", SCORES)
    assert main(["stop", "demo", "--runs-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "sweep demo is not running\n"
    assert not sweep_folder(tmp_path, "demo").stop.exists()


def test_command_line_overrides_reach_the_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = write_space(tmp_path / "space.yaml")
    overrides = ["search.configurations=3", "--name", "other", "--runs-dir", str(tmp_path), "--json"]
    assert main(["plan", str(space), *overrides]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["name"], plan["configurations"]) == ("other", 5)
    late = ["plan", str(space), "seeds=[0,1]", "--runs-dir", str(tmp_path), "search.configurations=0", "--json"]
    assert main(late) == 0
    assert json.loads(capsys.readouterr().out)["trials"] == 4
    assert main(["plan", str(space), "search.configuration=3"]) == 2
    assert "did you mean configurations?" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["status", "demo", "a=b"], ["run", "x.yaml", "--naem=x"], ["ls", "--what"]])
def test_words_that_nobody_reads_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "unrecognized arguments" in capsys.readouterr().err
