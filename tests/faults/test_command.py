"""A sweep of a script: driver and rank are killed, it is stopped, its disk fills, the winner is
confirmed, offline.
"""

import contextlib
import json
import os
import re
import signal

import psutil
import pytest

from sweep.cli import main
from sweep.record.folder import sweep_folder
from tests.run_cli import start_cli
from tests.sweep.harness import (
    event_log,
    finish,
    kill,
    metrics,
    results,
    states,
    wait_until,
    wait_until_gone,
)
from tests.sweep.programs.scripts import assert_complete, write_project
from tests.sweep.programs.test_command import trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def quick(capsys, verb, *words):
    """Run a command that starts no Ray, in this process and in the project's folder."""
    code = main([verb, *words, "--runs-dir", "runs"])
    return code, "".join(capsys.readouterr())


def sweep(project, *arguments):
    process = start_cli("sweep", *arguments, "--runs-dir", project / "runs", cwd=project)
    code, out, err = finish(process)
    return code, out + err


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Four trials of a script, ended after the driver was killed amid the first two."""
    project = tmp_path_factory.mktemp("project")
    space = write_project(
        project, defaults={"learning_rate": 0.1, "loss_type": "grpo", "steps": 10, "step_s": 0.3}
    )
    folder = sweep_folder(project / "runs", "mine")
    process = start_cli(
        "sweep", "run", space, "--offline", "--runs-dir", project / "runs", cwd=project
    )
    wait_until(lambda: len(metrics_of(folder.root, "c000-s0")) >= 3, what="three evaluations")
    kill(process)
    wait_until_gone(folder)
    code, output = sweep(project, "resume", "mine")
    assert code == 0, output
    return project


def metrics_of(root, trial):
    return metrics(root, trial) if (root / "trials" / trial / "metrics.jsonl").exists() else []


def test_every_trial_is_there_once_with_every_evaluation(project):
    root = project / "runs" / "mine"
    assert list(states(root).values()) == ["COMPLETE"] * 4
    for name in states(root):
        evaluated = [line["step"] for line in metrics(root, name) if "eval/accuracy" in line]
        assert evaluated == list(range(1, 11))
    trials = [record for record in event_log(root) if record["event"] == "trial"]
    assert sum(record["configuration"] == 0 for record in trials) > 2  # again after the kill


def test_the_winner_is_confirmed_on_held_out_problems_and_reported(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    code, output = sweep(project, "confirm", "mine", "--seeds", 2)
    assert code == 0, output
    fresh = results(project / "runs" / "mine-confirm")
    assert {result["seed"] for result in fresh.values()} == {2, 3}
    # the script's held-out problems are harder
    assert all(result["score"] < 0.5 for result in fresh.values())
    code, output = quick(capsys, "report", "mine")
    assert code == 0 and "report.html" in output
    code, output = quick(capsys, "export", "mine", "--baseline")
    assert (
        code == 0
        and "LOPTUNE_SEED=0" in output
        and "train.py --learning_rate 0.1 --loss_type grpo" in output
    )
    code, output = quick(capsys, "plan", "space.yaml")
    assert code == 0 and "s per trial (measured in mine)" in output


def test_a_changed_script_is_refused_until_it_is_accepted(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    script = project / "train.py"
    script.write_text(script.read_text() + "\n")
    code, output = quick(capsys, "extend", "mine", "--configurations", "1")
    assert code == 2 and "train.py (program) has changed" in output
    code, output = sweep(project, "extend", "mine", "--configurations", 1, "--accept-changes")
    assert code == 0 and len(results(project / "runs" / "mine")) == 6, output


def test_a_killed_rank_and_a_stopped_command_are_tried_again(tmp_path):
    steps = {"learning_rate": 0.1, "loss_type": "grpo", "steps": 12, "step_s": 1.5}
    limits = {"max_concurrent": 2, "max_failures": 3, "stall_timeout_s": 20}
    space = write_project(
        tmp_path, defaults=steps, limits=limits, search={"sampler": "random", "configurations": 0}
    )
    root = tmp_path / "runs" / "mine"
    process = start_cli(
        "sweep", "run", space, "--offline", "--runs-dir", tmp_path / "runs", cwd=tmp_path
    )
    for name in ("c000-s0", "c000-s1"):
        wait_until(lambda name=name: len(metrics_of(root, name)) >= 2, what="two evaluations")
        if name == "c000-s0":
            log = (root / "trials" / name / "stderr.log").read_text()
            os.kill(
                int(re.findall(r"^rank 0: process (\d+)", log, re.MULTILINE)[-1]), signal.SIGKILL
            )
        else:
            (script,) = (
                candidate
                for candidate in psutil.process_iter()
                if is_script(candidate, str(root / "trials" / name))
            )
            script.suspend()
    code, out, err = finish(process)
    assert code == 0 and "retry 1 of 3: rank 0 died" in out, out + err
    assert re.search(r" for 2\d s", out), out
    assert_complete(root, steps=12)


def is_script(process, folder):
    """Whether a process is the script itself, not its launcher, of the trial in that folder."""
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return words[1:2] == ["train.py"] and process.environ().get("LOPTUNE_OUT", "").startswith(
            folder
        )
    return False


def test_a_disk_that_a_script_finds_full_is_no_failure_of_its_trial(disk):
    script = 'import sys; open(sys.argv[1] + "/state", "wb").write(bytes(16 * 2**20))'
    with trial(disk, script) as run:
        with pytest.raises(OSError, match="No space left on device"):
            run.train_until_evaluation()
        (disk / "trials" / "c000-s0" / "out" / "state").unlink()


def test_failed_trials_keep_their_reason_and_unused_seeds_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["python", "train.py", "--learning_rate", "{learning_rate}"]
    space = write_project(
        tmp_path,
        command=[*command, "--loss_type", "{loss_type}", "--seed", "7"],
        baselines=[
            {"learning_rate": 0.1, "loss_type": loss_type} for loss_type in ("grpo", "broken")
        ],
        search={"sampler": "random", "configurations": 0},
    )
    code, output = sweep(tmp_path, "run", space, "--offline")
    reason = "the command ended with 1: no such loss: broken"
    assert code == 1 and f"c001-s0  {reason}" in output
    warning = "c000-s0, c000-s1 have identical metrics"
    assert f"warning: {warning}" in output
    assert f"warning: {warning}" in quick(capsys, "status", "mine")[1]
    assert warning in (tmp_path / "runs" / "mine" / "report" / "report.html").read_text()
    rows = json.loads(quick(capsys, "status", "mine", "--json")[1])["trials"]
    assert [row["state"] for row in rows] == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"]
    assert rows[2]["reason"] == reason
