import subprocess
import sys

from tests.paths import ROOT


def test_what_it_needs_of_the_project_imports_nothing_else():
    # Every process of a server imports it, in an environment that may not have what a trainer
    # needs.
    code = (
        "import sys, trainer.rollouts.vllm.output; "
        "print(sorted(name for name in sys.modules if name.startswith('trainer')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    packages = [
        "trainer",
        "trainer.rollouts",
        "trainer.rollouts.vllm",
        "trainer.rollouts.vllm.output",
    ]
    assert done.stdout.strip() == str(packages)
