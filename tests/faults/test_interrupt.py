"""Stopping a sweep: Ctrl-C once and twice, `sweep stop`, a second driver, a folder that
disappears.
"""

import json
import os
import signal

import pytest

from sweep.cli import main
from sweep.record.folder import sweep_folder
from tests.sweep.harness import (
    finish,
    history,
    results,
    running,
    wait_until,
    wait_until_gone,
    write_space,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LONG = {"max_steps": 10_000, "evaluation.every_steps": 5_000, "checkpoint.every_steps": 5_000}


TRIALS = ("c000-s0", "c001-s0")


def start(runs, at_a_time=1):
    """The words that start a sweep of long trials."""
    trainer = {"preset": "tiny_kk", "overrides": LONG}
    limits = {"max_concurrent": at_a_time}
    space = write_space(runs / "space.yaml", trainer=trainer, limits=limits)
    return ["run", space, "--runs-dir", runs, "--offline", "--cpus", 2]


def stepping(folder, at_a_time=1):
    return all(len(history(folder, trial, "step")) > 2 for trial in TRIALS[:at_a_time])


def test_interrupt_stop_and_resume(tmp_path, capsys):
    folder = tmp_path / "fake"
    here = ["--runs-dir", str(tmp_path)]
    with running(*start(tmp_path, at_a_time=2)) as process:
        wait_until(lambda: stepping(folder, at_a_time=2))

        assert main(["resume", "fake", *here]) == 5
        assert f"process {process.pid} on " in capsys.readouterr().err
        assert main(["status", "fake", *here, "--json"]) == 0
        trials = json.loads(capsys.readouterr().out)["trials"]
        assert [trial["state"] for trial in trials] == ["RUNNING", "RUNNING"]

        # `timeout` and a job's end send the signal to the whole group, as a terminal does below.
        os.killpg(process.pid, signal.SIGTERM)
        code, out, err = finish(process)
        assert code == 130, err
        assert out.splitlines()[-1] == f"python -m sweep resume fake --cpus 2 --runs-dir {tmp_path}"
        assert results(folder) == {}
        stopped = {}
        for trial in TRIALS:
            last = history(folder, trial, "step")[-1]["step"]
            assert last < 5_000  # a training step, not the next evaluation
            assert (folder / "trials" / trial / "checkpoints" / f"step-{last}").is_dir()
            stopped[trial] = last

    with running("resume", "fake", *here, "--cpus", 2, step_s=0.1) as process:
        wait_until(
            lambda: all(
                len(history(folder, trial, "step")) > step + 2 for trial, step in stopped.items()
            )
        )
        for trial, step in stopped.items():
            assert history(folder, trial, "resume")[-1]["step"] == step
        os.killpg(process.pid, signal.SIGINT)
        code, out, _ = finish(process)
        assert code == 130
        assert "resume fake" in out.splitlines()[-1]
    wait_until_gone(sweep_folder(tmp_path, "fake"))


def test_a_second_interrupt_stops_at_once(tmp_path):
    folder = tmp_path / "fake"
    (tmp_path / "faults.json").write_text(json.dumps({TRIALS[0]: {"hang_at": 3}}))
    with running(*start(tmp_path)) as process:
        wait_until(lambda: stepping(folder))
        process.send_signal(signal.SIGINT)
        assert any("stopping after the current training step" in line for line in process.stdout)
        assert process.poll() is None  # the hanging trial cannot reach a step boundary
        process.send_signal(signal.SIGINT)
        code, out, _ = finish(process, timeout=200)
        assert code == 130
        assert "resume fake" in out.splitlines()[-1]
    wait_until_gone(sweep_folder(tmp_path, "fake"))


def test_a_folder_that_disappears_ends_the_sweep_and_is_not_made_anew(tmp_path):
    folder = tmp_path / "fake"
    with running(*start(tmp_path)) as process:
        wait_until(lambda: stepping(folder))
        folder.rename(tmp_path / "moved")
        code, _, err = finish(process)
        assert code == 4, err
        assert "[sweep-files-gone]" in err and "fake" in err
        assert not folder.exists()
