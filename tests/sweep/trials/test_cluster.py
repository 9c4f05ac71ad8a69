"""What fits on which nodes, and Ray on this machine."""

import os
import subprocess
import sys

import pytest

from sweep.programs.base import ResourcesSpec
from sweep.trials.cluster import Node, slots, stderr_to
from tests.paths import ROOT
from tests.sweep.harness import FOUR_GPUS

RAY_FIRST = """
import os
import ray
import tempfile
from pathlib import Path
from sweep.trials.cluster import ray_running

# A path of a socket has at most 107 bytes.
with tempfile.TemporaryDirectory() as folder, ray_running(None, 1, Path(folder), Path("log")):
    nicer = ray.get(ray.remote(lambda: os.nice(0)).remote()) - os.nice(0)
    print(nicer, ray.get_runtime_context().gcs_address)
"""


@pytest.mark.parametrize(
    ("changes", "nodes", "expected"),
    [
        ({}, [Node(16, 8), Node(16, 8)], 4),
        ({}, [Node(16, 6), Node(16, 6)], 2),
        ({}, [Node(16, 3), Node(16, 3), Node(16, 2)], 2),  # no node holds a whole trial
        ({"cpus_per_worker": 4}, [Node(16, 8), Node(40, 8)], 3),
        ({"cpus_per_worker": 4}, [Node(15, 8)], 0),
        ({"gpus_per_trial": 0.5, "workers_per_trial": 1}, [Node(16, 2)], 4),
        ({"gpus_per_trial": 0, "workers_per_trial": 1}, [Node(3, 0), Node(2, 0)], 5),
    ],
)
def test_trials_at_one_time(changes, nodes, expected):
    assert slots(ResourcesSpec(**{**FOUR_GPUS, **changes}), nodes) == expected


def test_what_rays_core_writes_to_standard_error_goes_into_the_log(tmp_path, capfd):
    log = tmp_path / "driver.log"
    with pytest.raises(ConnectionError), stderr_to(log):
        os.write(2, b"gcs_client.cc: Failed to get cluster ID\n")
        raise ConnectionError
    os.write(2, b"error\n")
    assert log.read_text() == "gcs_client.cc: Failed to get cluster ID\n"
    assert capfd.readouterr().err == "error\n"


def test_ray_starts_although_imported_with_another_token(tmp_path):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 64)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = {**inherited, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RAY_FIRST]
    run = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200
    )
    assert run.stdout.startswith("0 127.0.0.1:"), run.stderr


@pytest.mark.parametrize(
    ("fraction", "gpus", "trials"),
    [
        (0.15, 8, 48),  # six on each, as Ray splits no fraction over two GPUs
        (0.5, 8, 16),
        (0.3, 8, 24),
        (0.3333, 2, 6),
        (0.1, 1, 10),
        (0.7, 4, 4),
        (4, 8, 2),
        (8, 8, 1),
    ],
)
def test_fractions_are_counted_on_each_gpu(fraction, gpus, trials):
    assert slots(ResourcesSpec(gpus_per_trial=fraction), [Node(96, gpus)]) == trials
    assert slots(ResourcesSpec(gpus_per_trial=fraction), [Node(96, gpus)] * 2) == 2 * trials
