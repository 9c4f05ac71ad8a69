"""`trainer doctor` reports what is there, what does not work, and what it cannot tell."""

import json
import subprocess
import sys
import time

import pytest

from tests.paths import ROOT
from trainer import doctor
from trainer.cli import main

SMI = """#!/bin/sh
case "$1" in
  -L) printf 'GPU 0: NVIDIA H100\\nGPU 1: NVIDIA H100\\n';;
  *driver_version*) printf '580.1\\n580.1\\n';;
  *name*) printf 'NVIDIA H100, 81559, 4\\nNVIDIA H100, 81559, 60000\\n';;
esac
"""


def by_item(findings):
    return {finding.item: finding for finding in findings}


def test_a_machine_without_gpus_is_described_in_seconds(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    states = {row["item"]: row["state"] for row in report["machine"]}
    assert states["torch"] == states["disk"] == states["libraries"] == "ok"
    assert {"memory", "CPU", "C compiler", "NVIDIA driver", "vLLM"} <= set(states)
    assert any("PRESET max_steps=1" in question for question in report["unknown"])
    assert list(tmp_path.iterdir()) == []  # looking changes nothing


def test_gpus_that_torch_cannot_use_are_a_problem(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for_cpus = doctor.TorchReport(version="2.13.0+cpu")
    found = by_item(doctor.examine(tmp_path, for_cpus))
    assert found["NVIDIA driver"].found == "580.1"
    assert found["GPU 0"].found.startswith("NVIDIA H100, 86 GB")
    assert "nvidia-smi" in found["GPU 1"].advice and found["GPU 0"].advice == ""
    assert found["torch"].state == "problem" and "0 of 2" in found["torch"].found
    sees_both = doctor.TorchReport("2.13.0", "13.0", gpus=("H100", "H100"))
    assert by_item(doctor.examine(tmp_path, sees_both))["torch"].state == "ok"
    sees_one = doctor.TorchReport("2.13.0", "13.0", gpus=("H100",), reason="out of memory")
    assert "out of memory" in by_item(doctor.examine(tmp_path, sees_one))["torch"].found


def test_a_torch_that_crashes_or_hangs_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_TORCH", "raise OSError('libcudart.so: no such file')")
    assert "libcudart.so" in doctor.ask_torch().error
    monkeypatch.setattr(doctor, "_TORCH", "import os; os.abort()")
    assert "-6" in doctor.ask_torch().error
    monkeypatch.setattr(doctor, "_TORCH", "import time; time.sleep(60)")
    started = time.monotonic()
    report = doctor.ask_torch(timeout_s=1.0)
    assert "1 s" in report.error and time.monotonic() - started < 30
    assert by_item(doctor.examine(tmp_path, report))["torch"].state == "problem"


def test_a_full_disk_and_little_shared_memory_are_problems(tmp_path, monkeypatch):
    usage = doctor.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage._replace(free=10**8))
    found = by_item(doctor.examine(tmp_path / "runs" / "new", doctor.TorchReport("2.13.0")))
    assert found["disk"].state == found["shared memory"].state == "problem"
    assert "0.1 GB" in found["disk"].found


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("memory.max", "8000000000\n", 8 * 10**9),
        ("memory.max", "max\n", None),
        ("memory/memory.limit_in_bytes", "5\n", 5),
    ],
)
def test_the_memory_limit_of_a_container_is_read(tmp_path, file, text, limit):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert doctor.memory_limit(tmp_path) == limit


def test_the_report_needs_no_package_of_sweeps(tmp_path):
    """It imports neither torch, which may not work, nor Ray."""
    program = (
        "import sys\n"
        "for name in ('torch', 'ray', 'optuna', 'transformers'):\n"
        "    sys.modules[name] = None\n"
        "import trainer.commands.doctor\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_the_version_of_a_module_from_a_distribution_of_another_name(monkeypatch):
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"yaml": ["PyYAML"]})
    assert doctor.installed_version("yaml")[0].isdigit()
    assert doctor.installed_version("vllm") == "version unknown"
