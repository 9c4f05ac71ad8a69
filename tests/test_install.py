"""Which installer `install.sh` calls, and where it lets it look for torch."""

import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.paths import ROOT

UNREACHABLE = "http://127.0.0.1:9/whl/cpu"


class Index(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, format, *args):
        """Stay silent."""


@pytest.fixture
def cpu_index():
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/whl/cpu"
        server.shutdown()


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def installed(folder, index, has_uv=False, has_gpu=False, torch="fit"):
    """The installer's command lines."""
    write_program(
        folder / "venv/bin/python", f'test "$1" = -m && echo pip "$@" || exec {sys.executable} "$@"'
    )
    if has_uv:
        write_program(folder / "bin/uv", 'echo uv "$@"')
    if has_gpu:
        write_program(folder / "bin/nvidia-smi", "")
    done = subprocess.run(
        ["./install.sh", str(folder / "venv"), torch, "-e", "."],
        cwd=ROOT,
        env={
            "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
            "TORCH_CPU_INDEX": index,
            "PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("installing into ")
    lines = done.stdout.replace(str(folder), "").splitlines()
    return [line for line in lines if line.startswith(("uv ", "pip "))]


PIP = "pip -m pip install --disable-pip-version-check"
NEWEST_PIP = f"{PIP} --quiet --upgrade pip"


pytestmark = pytest.mark.skipif(
    os.path.exists("/dev/nvidiactl"), reason="this machine has an NVIDIA driver"
)


@pytest.mark.parametrize("has_uv", [False, True])
def test_a_machine_without_a_gpu_takes_torch_for_cpus(tmp_path, cpu_index, has_uv):
    uv = "uv pip install --python /venv/bin/python --torch-backend cpu -e ."
    # torch alone comes from its own index, everything else from the package index
    pip = [NEWEST_PIP, f"{PIP} --no-deps --index-url {cpu_index} torch", f"{PIP} -e ."]
    assert installed(tmp_path, cpu_index, has_uv) == ([uv] if has_uv else pip)


@pytest.mark.parametrize("has_uv", [False, True])
def test_an_index_that_does_not_answer_leaves_torch_to_the_package_index(tmp_path, has_uv):
    uv = "uv pip install --python /venv/bin/python -e ."
    pip = [NEWEST_PIP, f"{PIP} -e ."]
    assert installed(tmp_path, UNREACHABLE, has_uv) == ([uv] if has_uv else pip)


@pytest.mark.parametrize("has_uv", [False, True])
def test_a_machine_with_a_gpu_takes_torch_with_cuda(tmp_path, cpu_index, has_uv):
    command = installed(tmp_path, cpu_index, has_uv, has_gpu=True)
    assert not any("cpu" in line for line in command)
    assert installed(tmp_path, cpu_index, has_uv, torch="index") == command


def test_the_image_runs_as_a_user_without_rights():
    users = re.findall(r"^USER (\S+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert users[-1] not in ("root", "0")
