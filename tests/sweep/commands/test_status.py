import json
import os
import shlex
import subprocess
import sys

import optuna
import pytest

from loptune.files import read_records
from sweep.record import identical_trials
from tests.sweep.ended_sweeps import SCORES, write_sweep


def test_status_reads_event_log_and_folders(tmp_path, typed):
    write_sweep(tmp_path)
    status = json.loads(typed("sweep status demo --json"))
    states = {trial["trial"]: trial["state"] for trial in status["trials"]}
    assert states["c001-s1"] == "FAIL"
    assert states["c003-s1"] == "WAITING"
    assert sum(state == "COMPLETE" for state in states.values()) == 6
    assert [trial["step"] for trial in status["trials"] if trial["trial"] == "c000-s0"] == [3]
    assert not status["running"]
    # Configuration 1 lost a seed and 3 misses one, so 2 wins with (0.7 + 0.6) / 2.
    assert (status["best"]["configuration"], status["best"]["score"]) == (2, pytest.approx(0.65))
    out = typed("sweep status demo")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["trial", "state", "step", "score", "parameters", "reason"]
    assert lines[1] == ["c000-s0", "COMPLETE", "3/4", "0.5", "ar_alpha=0"]
    assert lines[4][:4] == ["c001-s1", "FAIL", "3/4", "ar_alpha=0.1"]
    assert "diverged at step 3: policy/loss is nan" in out
    assert "best: configuration 2  ar_alpha=0.2" in out and "sweep report demo" in out


def test_status_without_a_name_shows_the_newest_sweep(tmp_path, typed):
    older = write_sweep(tmp_path, "older")
    os.utime(older.folder.space, (1, 1))
    write_sweep(tmp_path, "newer")
    assert "\nnewer: " in typed("sweep status")


def test_status_of_a_search_imports_nothing_that_judges(tmp_path):
    write_sweep(tmp_path)
    code = (
        "import sys; from sweep.cli import main; "
        f"main(['status', 'demo', '--runs-dir', {str(tmp_path)!r}]); "
        "print({'numpy', 'pandas', 'scipy', 'plotly', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "best: configuration 2" in done.stdout and done.stdout.endswith("\nset()\n")


def test_identical_trials_are_named_and_only_ends_are_read(tmp_path, monkeypatch):
    scores = {0: {0: 0.5, 1: 0.5, 2: 0.5}, 1: {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5}}
    sweep = write_sweep(tmp_path, "demo", scores)
    measured = {
        "c000-s2": [7, 7],
        "c001-s3": [7, 7],
        "c000-s0": [1, 2],
        "c000-s1": [1, 3],
        "c001-s0": [1, 2],
        "c001-s1": [0, 2],
        "c001-s2": [1, 2],
    }
    for index, (trial, values) in enumerate(measured.items()):
        lines = [
            {"step": step, "eval/accuracy": value, "time/step": index}
            for step, value in enumerate(values)
        ]
        file = sweep.folder.trial(trial) / "metrics.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)))
    read = []

    def read_and_note(path):
        read.append(path.parent.name)
        return read_records(path)

    monkeypatch.setattr(identical_trials, "read_records", read_and_note)
    [message] = identical_trials.identical_trials(sweep)
    assert message.startswith("c000-s0, c001-s0, c001-s2; c000-s2, c001-s3 ")
    assert sorted(read) == ["c000-s0", "c000-s2", "c001-s0", "c001-s1", "c001-s2", "c001-s3"]


def test_status_names_the_best_of_every_arm(tmp_path, typed):
    arms = {
        "algorithm.ar_alpha": {"choice": [0.0, 0.1, 0.2, 0.3]},
        "optim.lr": {"uniform": [1e-5, 1e-3]},
    }
    search = {"configurations": 3, "tune_within": "algorithm.ar_alpha"}
    write_sweep(tmp_path, parameters=arms, baselines=[], search=search)
    lines = typed("sweep status demo").splitlines()
    place = next(
        index for index, line in enumerate(lines) if line.startswith("demo: 7 of 24 trials")
    )
    assert [line.strip() for line in lines[place + 1 : place + 5]] == [
        "0.0: 2 of 6 trials, best #0 0.55",
        "0.1: 2 of 6 trials, no configuration is complete",
        "0.2: 2 of 6 trials, best #2 0.65",
        "0.3: 1 of 6 trials, no configuration is complete",
    ]
    assert any("confirm demo" in line for line in lines[place + 5 :])


def test_the_best_of_a_loss_is_the_smallest(tmp_path, typed):
    objective = {"metric": "eval/completion_length", "mode": "min"}
    write_sweep(tmp_path, objective=objective)
    assert json.loads(typed("sweep status demo --json"))["best"]["configuration"] == 0


def test_ls_lists_every_sweep_even_a_broken_one(tmp_path, typed):
    write_sweep(tmp_path, "one", SCORES)
    write_sweep(tmp_path, "two", {0: {0: 0.5}, 1: {0: 0.4}, 2: {0: 0.1}})
    (tmp_path / "three").mkdir()
    write_sweep(tmp_path, "zero", {0: {0: 0.5}})
    (tmp_path / "zero/lock").mkdir()
    (tmp_path / "three" / "space.lock.yaml").write_text("nonsense: [")
    listed = {row["name"]: row for row in json.loads(typed("sweep ls --json"))}
    assert list(listed) == ["one", "three", "two", "zero"]
    assert (listed["two"]["state"], listed["two"]["best"]) == ("done", 0.5)
    assert (listed["one"]["ended"], listed["one"]["planned"]) == (7, 6)
    assert "YAML" in listed["three"]["state"]
    assert "Is a directory" in listed["zero"]["state"]
    assert "no sweeps" in typed("sweep ls --runs-dir", tmp_path / "none")


def test_stopping_a_sweep_that_does_not_run_says_so(tmp_path, typed):
    sweep = write_sweep(tmp_path)
    assert typed("sweep stop demo") == "sweep demo is not running\n"
    assert not sweep.folder.stop.exists()


def test_a_study_replaces_its_own_file(tmp_path, typed):
    sweep = write_sweep(tmp_path)
    file = sweep.folder.root / "study.db"
    for _ in range(2):
        assert typed("sweep study demo") == f"optuna-dashboard sqlite:///{file}\n"
    assert file.is_file()


@pytest.mark.parametrize("place", ["a?b/study.db", "x%20y/study.db", "it's {0}/a #&b.db", "ü=1.db"])
def test_a_study_goes_into_a_file_with_any_name(tmp_path, typed, place):
    write_sweep(tmp_path)
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    program, url = shlex.split(typed("sweep study demo --output", file))
    assert program == "optuna-dashboard" and file.is_file()
    study = optuna.load_study(study_name="demo", storage=url)
    assert len(study.trials) == 4


def test_a_study_needs_a_path_that_a_url_can_stand_for(tmp_path, typed, monkeypatch):
    write_sweep(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert "[path-without-url]" in typed("sweep study demo --output :memory:", code=2)


def test_a_study_goes_into_a_new_file_only(tmp_path, typed):
    write_sweep(tmp_path)
    file = tmp_path / "mine.db"
    assert typed("sweep study demo --output", file) == f"optuna-dashboard sqlite:///{file}\n"
    assert file.is_file()
    assert "[output-exists]" in typed("sweep study demo --output", file, code=2)
    missing = tmp_path / "none" / "mine.db"
    assert "[no-output-folder]" in typed("sweep study demo --output", missing, code=2)
    assert not missing.parent.exists()
