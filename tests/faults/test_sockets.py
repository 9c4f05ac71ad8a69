"""Nothing of a sweep on this machine can be reached from another one, nor without its token; it
ends when it is asked to.
"""

import os
import subprocess
import sys

import psutil
import pytest

from sweep.cli import main
from sweep.driver.guard import sweep_processes
from tests.paths import ROOT
from tests.sockets import listening, open_to_others
from tests.sweep.harness import SEVERAL_RANKS, finish, history, running, wait_until, write_space

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STRANGER = """
import sys
from ray._raylet import GcsClient
print("came in:", GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10))
"""


def test_a_sweep_listens_on_loopback_alone_and_asks_for_its_token(tmp_path):
    overrides = {**SEVERAL_RANKS["overrides"], "max_steps": 10_000}
    space = write_space(
        tmp_path / "space.yaml",
        trainer={**SEVERAL_RANKS, "overrides": overrides},
        resources={"workers_per_trial": 2},
        limits={"max_concurrent": 1},
    )
    here = ["--runs-dir", str(tmp_path)]
    with running("run", space, *here, "--offline", "--cpus", 2) as driver:
        wait_until(lambda: len(history(tmp_path / "fake", "c000-s0", "step")) > 2)
        processes = sweep_processes(tmp_path / "fake")
        sockets = listening(psutil.Process(driver.pid), *processes)
        assert {"gcs_server", "raylet"} <= {name for name, _, _ in sockets}
        assert open_to_others(sockets) == set()
        assert not any("ray.util.client.server" in process.cmdline() for process in processes)

        (gcs,) = {port for name, _, port in sockets if name == "gcs_server"}
        environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        stranger = subprocess.run(
            [sys.executable, "-c", STRANGER, f"127.0.0.1:{gcs}"],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "came in" not in stranger.stdout
        assert "AuthenticationError" in stranger.stderr

        assert main(["stop", "fake", *here]) == 0
        code, out, err = finish(driver)
        assert code == 130, err
        assert "resume fake" in out.splitlines()[-1]
