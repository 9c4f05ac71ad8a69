"""A few of the kills of `make chaos`: a killed command continues and repeats nothing."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def killed(*options):
    """Return what the kills printed."""
    line = [sys.executable, "-m", "tests.faults.kills", "--seed", "1", *options]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_killed_swarm_of_the_built_in_model_ends_as_an_undisturbed_one():
    assert "tiny-swarm: 2 kills" in killed("--kills", "2", "--jobs", "tiny-swarm")


def test_killed_sweeps_confirmations_and_campaigns_end_as_undisturbed_ones():
    printed = killed("--kills", "16")
    for job in ("sweep", "confirmation", "campaign", "swarm"):
        assert f"{job}: 4 kills" in printed
