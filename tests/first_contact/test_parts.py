"""`make first-contact` runs all of its parts, each limited in time, and reports what failed."""

import json
import sys

import psutil
import pytest

from tests.first_contact.__main__ import chosen_parts
from tests.first_contact.parts import Machine, Part, parts, this_machine, untold
from tests.first_contact.run import run_parts
from tests.trainer.parallel.test_gpus import HAS_COMPILER, HAS_HEADERS

CPU = Machine(gpus=0, vllm=False, ray=True)


def python(name, program, limit_s=60.0):
    return Part(name, "?", limit_s, (sys.executable, "-c", program))


def test_all_parts_run_though_some_fail_hang_or_cannot_run(tmp_path, capsys):
    chosen = [
        python("broken", "raise RuntimeError('no such kernel')"),
        python(
            "endless", "import time; print('sampling', flush=True); time.sleep(600)", limit_s=20.0
        ),
        Part("absent", "?", 60.0, None, "needs 4 GPUs"),
        python("good", "print('1.5 TFLOP/s')"),
    ]
    outcomes = run_parts(chosen, [], tmp_path)
    assert [(outcome.state, outcome.detail) for outcome in outcomes] == [
        ("failed", "RuntimeError: no such kernel"),
        ("timed out", "sampling"),
        ("not run", "needs 4 GPUs"),
        ("passed", "1.5 TFLOP/s"),
    ]
    report = json.loads((tmp_path / "report.json").read_text())
    assert [part["state"] for part in report["parts"]] == [outcome.state for outcome in outcomes]
    assert any("Traceback" in line for line in report["parts"][0]["last_lines"])
    assert report["parts"][3]["last_lines"] == ["1.5 TFLOP/s"]
    assert report["versions"]["torch"]
    assert "good " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("machine", "waiting"),
    [
        (CPU, {"vllm", "engine", "two trials on one GPU", "ranks by NCCL"}),
        (
            Machine(gpus=1, vllm=True, ray=False),
            {"two trials", "two trials on one GPU", "step of kk_3b:ar_lopti", "ranks by NCCL"},
        ),
        (Machine(gpus=4, vllm=True, ray=True), set()),
    ],
)
def test_what_a_machine_lacks_is_said(machine, waiting, tmp_path):
    offered = parts(machine, tmp_path)
    assert {part.name for part in offered if part.command is None} == waiting
    assert all(bool(part.missing) == (part.command is None) for part in offered)
    assert not any("on 0 ranks" in part.question for part in offered)


def test_parts_come_in_the_order_in_which_they_teach_most(tmp_path):
    offered = parts(Machine(gpus=1, vllm=True, ray=True), tmp_path)
    names = [part.name for part in offered]
    wanted = ["driver", "memory probe", "gradient race", "phases", "two ranks by ddp", "engine"]
    wanted += ["vllm", "step of kk_3b_lora:ar_lopti", "two trials on one GPU", "strategies"]
    assert [name for name in names if name in wanted] == wanted
    assert all(part.limit_s <= 9 * 60 for part in offered)


def test_two_ranks_share_the_first_gpu_by_gloo(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    shared = {
        "CUDA_VISIBLE_DEVICES": "5",
        "LOPTUNE_GLOO_ON_GPUS": "1",
        "LOPTUNE_GPU_FRACTION": "0.5",
    }
    offered = {part.name: part for part in parts(Machine(gpus=2, vllm=True, ray=True), tmp_path)}
    assert offered["two ranks by ddp"].environment == shared
    assert offered["ranks by NCCL"].environment == {}
    on_cpu = {part.name: part for part in parts(CPU, tmp_path)}
    assert on_cpu["two ranks by ddp"].environment == {}


def test_what_the_parts_cannot_tell_depends_on_the_gpus(tmp_path, capsys):
    without, one, four = (untold(Machine(gpus=gpus, vllm=True, ray=True)) for gpus in (0, 1, 4))
    assert any("NCCL" in question for question in one)
    assert not any("NCCL" in question for question in four)
    run_parts([python("good", "print(1)")], [], tmp_path, without)
    assert json.loads((tmp_path / "report.json").read_text())["cannot_tell"] == without
    assert all(question in capsys.readouterr().out for question in without[:1])


def test_what_a_hanging_part_started_ends_with_it(tmp_path, monkeypatch):
    """As a rank of torchrun: in a session of its own, and deaf to SIGTERM."""
    monkeypatch.setattr("tests.first_contact.run.GRACE_S", 1.0)
    rank = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    program = f"""
import pathlib, subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", {rank!r}], start_new_session=True)
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(rank.pid))
time.sleep(600)
"""
    run_parts([python("ranks", program, limit_s=15.0)], [], tmp_path)
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_daemon_whose_parent_has_ended_ends_with_its_part(tmp_path, monkeypatch):
    """As Ray's daemons after `ray start` has been killed."""
    monkeypatch.setattr("tests.first_contact.run.GRACE_S", 1.0)
    starter = f"""
import pathlib, subprocess, sys
daemon = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
)
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(daemon.pid))
"""
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {starter!r}])"
    run_parts([python("daemon", program)], [], tmp_path)
    pid = int((tmp_path / "pid").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_an_unknown_part_is_refused_with_the_nearest(tmp_path):
    offered = parts(CPU, tmp_path)
    with pytest.raises(ValueError, match=r"'drivr'; choose driver$"):
        chosen_parts(["drivr"], offered)
    chosen = chosen_parts(["compiler", "driver"], offered)
    assert [part.name for part in chosen] == ["driver", "compiler"]
    assert chosen_parts([], offered) == offered


@pytest.mark.slow
def test_a_run_that_loses_one_of_two_ranks_ends_and_resumes(tmp_path):
    [part] = [part for part in parts(CPU, tmp_path) if part.name == "lost rank"]
    [outcome] = run_parts([part], [], tmp_path)
    assert outcome.state == "passed", outcome.last_lines
    assert outcome.detail.endswith("step 4")


def test_a_users_file_does_not_shadow_a_part(tmp_path, monkeypatch):
    (tmp_path / "tests.py").write_text("raise RuntimeError('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    command = (sys.executable, "-c", "import tests.first_contact.checks; print('ours')")
    part = Part("names", "?", 60.0, command)
    [outcome] = run_parts([part], [], tmp_path / "report")
    assert (outcome.state, outcome.detail) == ("passed", "ours")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cpu_runs_what_it_can(tmp_path):
    states = {
        "driver": "passed",
        "compiler": "passed",
        "memory probe": "passed",
        "step of tiny_kk": "passed",
    }
    if not (HAS_COMPILER and HAS_HEADERS):
        states["compiler"] = "failed"
    chosen = [part for part in parts(this_machine(0), tmp_path) if part.name in states]
    outcomes = {outcome.name: outcome for outcome in run_parts(chosen, [], tmp_path)}
    assert {name: outcome.state for name, outcome in outcomes.items()} == states
    assert "time/update" in outcomes["step of tiny_kk"].detail
