"""`trainer doctor --run` runs all of its parts, each limited in time, and reports what failed."""

import json
import sys

import pytest

from tests.trainer.parallel.test_gpus import HAS_COMPILER, HAS_HEADERS
from trainer.doctor.parts import Machine, Part, parts, run_parts, this_machine

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
        (CPU, {"vllm"}),
        (Machine(gpus=1, vllm=True, ray=False), {"two trials", "step of kk_3b:ar_lopti"}),
        (Machine(gpus=4, vllm=True, ray=True), set()),
    ],
)
def test_what_a_machine_lacks_is_said(machine, waiting, tmp_path):
    offered = parts(machine, tmp_path)
    assert {part.name for part in offered if part.command is None} == waiting
    assert all(bool(part.missing) == (part.command is None) for part in offered)


def test_a_wheel_without_tests_still_offers_the_other_parts(tmp_path):
    offered = parts(Machine(gpus=4, vllm=True, ray=True, checkout=False), tmp_path)
    able = {part.name for part in offered if part.command is not None}
    assert able == {
        "driver",
        "compiler",
        "rehearsal",
        "two trials",
        "step of kk_0.5b",
        "step of kk_3b_lora:ar_lopti",
        "step of kk_3b:ar_lopti",
    }


def test_a_users_trainer_py_does_not_shadow_a_part(tmp_path, monkeypatch):
    (tmp_path / "trainer.py").write_text("raise RuntimeError('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    command = (sys.executable, "-c", "import trainer.doctor.checks; print('ours')")
    part = Part("names", "?", 60.0, command)
    [outcome] = run_parts([part], [], tmp_path / "report")
    assert (outcome.state, outcome.detail) == ("passed", "ours")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cpu_runs_what_it_can(tmp_path):
    states = {"driver": "passed", "compiler": "passed", "step of tiny_kk": "passed"}
    if not (HAS_COMPILER and HAS_HEADERS):
        states["compiler"] = "failed"
    chosen = [part for part in parts(this_machine(0), tmp_path) if part.name in states]
    outcomes = {outcome.name: outcome for outcome in run_parts(chosen, [], tmp_path)}
    assert {name: outcome.state for name, outcome in outcomes.items()} == states
    assert "time/update" in outcomes["step of tiny_kk"].detail
