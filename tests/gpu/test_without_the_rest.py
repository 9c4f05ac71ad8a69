"""A machine with torch, transformers and accelerate runs these tests without what only sweeps and
records need.
"""

import subprocess
import sys

from tests.paths import ROOT

ABSENT = (
    "ray",
    "optuna",
    "mlflow",
    "datasets",
    "deepspeed",
    "vllm",
    "plotly",
    "kaleido",
    "math_verify",
    "gguf",
    "requests",
)
PROGRAM = """
import sys, pytest
for name in {absent}:
    sys.modules[name] = None  # importing it now raises
code = pytest.main(["tests/gpu", "--collect-only", "-q", "-m", "gpu", "-p", "no:cacheprovider"])
import trainer.rehearsal.rank
sys.exit(code)
"""


def test_the_tests_and_the_trainer_import_nothing_of_the_rest():
    program = PROGRAM.format(absent=ABSENT)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print(done.stdout[-2000:], done.stderr[-2000:])
    assert done.returncode == 0
    _, listed = done.stdout.split("on a GPU these ")
    names = [line for line in listed.splitlines() if line.startswith("tests/gpu/")]
    assert int(listed.split()[0]) == len(set(names)) >= 20
    assert "tests/gpu/test_training.py::test_the_paper_s_preset_in_small_on_this_gpu" in names
    assert "error" not in done.stdout.lower()
