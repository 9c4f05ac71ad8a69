"""The project's commands as processes of their own: this copy of the code, one thread, output as it
is written.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.paths import ROOT
from tests.warm import warm

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def run_cli(
    *arguments: object,
    cwd: Path = ROOT,
    timeout: float = 280,
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """``python -m ARGUMENTS`` to its end, with what it printed; warm (`tests.warm`)."""
    command = warm("-m", *arguments)
    with _start(command, cwd, environment) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_cli(
    *arguments: object, cwd: Path = ROOT, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """``python -m ARGUMENTS`` as the leader of a process group, its output in pipes."""
    command = [sys.executable, "-m", *map(str, arguments)]
    return _start(command, cwd, environment)


def _start(
    command: list[str], cwd: Path, environment: Mapping[str, str] | None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **ENVIRONMENT, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
