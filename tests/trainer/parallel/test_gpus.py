import os
import shutil
import subprocess
import sysconfig

import pytest

from loptune.errors import MissingError
from tests.refusals import refused
from trainer.parallel import gpus


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Puts a program of that name, with the given body of a shell script, before all others."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def write(body):
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return write


def test_gpus_driver_and_memory_are_what_the_driver_lists(nvidia_smi):
    nvidia_smi(
        'case "$1" in\n'
        '-L) echo "GPU 0: H100 (UUID: GPU-0)"; echo "  MIG 1g.10gb"; echo "GPU 1: H100 (UUID: '
        'GPU-1)";;\n'
        "--query-gpu=driver_version) echo 570.86.10; echo 570.86.10;;\n"
        "--query-gpu=memory.total) echo 81559; echo 40960; echo '[N/A]';;\n"
        "esac"
    )
    assert gpus.visible_gpus() == 2
    assert gpus.driver_version() == "570.86.10"
    assert gpus.gpu_bytes() == 40960 * 2**20  # of the smallest


@pytest.mark.parametrize(
    ("chosen", "number"), [("", 0), ("-1", 0), ("0, 3", 2), ("GPU-8932f937,MIG-1", 2)]
)
def test_the_gpus_a_process_was_given_count_before_those_listed(
    nvidia_smi, monkeypatch, chosen, number
):
    nvidia_smi('echo "GPU 0: NVIDIA H100"')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert gpus.visible_gpus() == number


def test_a_driver_that_fails_or_hangs_lists_nothing(nvidia_smi, monkeypatch):
    nvidia_smi('echo "GPU 0: NVIDIA H100"; exit 9')
    assert (gpus.visible_gpus(), gpus.driver_version(), gpus.gpu_bytes()) == (0, None, None)
    monkeypatch.setattr(gpus, "LISTING_TIMEOUT_S", 0.05)
    nvidia_smi('echo "GPU 0: NVIDIA H100"; exec sleep 20')
    assert gpus.visible_gpus() == 0


def test_without_the_program_nothing_is_started(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(subprocess, "run", None)
    assert gpus.visible_gpus() == 0


HAS_COMPILER = shutil.which("gcc") is not None
HAS_HEADERS = os.path.exists(f"{sysconfig.get_path('include', 'posix_prefix')}/Python.h")


@pytest.mark.skipif(not (HAS_COMPILER and HAS_HEADERS), reason="needs gcc and Python.h")
def test_a_compiler_that_finds_python_h_will_do(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    gpus.check_compiler()


def test_without_a_compiler_it_names_the_packages(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("no-compiler", MissingError) as caught:
        gpus.check_compiler()
    assert "apt-get install gcc python3-dev" in caught.value.hint
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    with refused("no-compiler", MissingError, names=("No such file or directory",)):
        gpus.check_compiler()


@pytest.mark.skipif(not HAS_COMPILER, reason="needs gcc")
def test_without_python_h_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus.sysconfig, "get_path", lambda name, scheme: str(tmp_path))
    with refused("compiler-fails", MissingError, names=("Python.h: No such file or directory",)):
        gpus.check_compiler()
