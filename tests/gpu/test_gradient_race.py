"""Gradients under ZeRO-2 while reductions overlap with the backward pass.

DeepSpeed frees a gradient larger than its bucket although the reduction still uses it. That it
loses such gradients has been read in its source and seen on CPUs that claim to have streams; on a
GPU the line "bucket below the matrices" shows it. A run's bucket is never below a matrix.
"""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.gpu.conftest import ON_GPU
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
)


@pytest.mark.timeout(500)
@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), ON_GPU])
def test_reductions_that_overlap_lose_no_gradient(device, tmp_path):
    # in an interpreter of its own: its process group is a fake
    command = [
        sys.executable,
        "-m",
        "tests.gpu.gradient_race_job",
        device,
        tmp_path / "result.json",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    print(done.stdout)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["largest gradient"] > 0
    assert result["without overlap again"] == 0
    assert result["bucket of a run"] == 0
    if device == "cpu":  # where nothing overlaps
        assert result["bucket below the matrices"] == 0
