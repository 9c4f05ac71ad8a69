"""A few of the kills of `make chaos`: a killed command continues and repeats nothing."""

import subprocess
import sys

import pytest

from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_killed_swarm_of_the_built_in_model_ends_as_an_undisturbed_one():
    line = [sys.executable, "-m", "tests.faults.tiny_swarm", "--kills", "2"]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("kill ") == 2 and "equal: " in ended.stdout


def test_killed_sweeps_confirmations_and_campaigns_end_as_undisturbed_ones():
    line = [sys.executable, "-m", "tests.faults.kills", "--kills", "16", "--seed", "1"]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    for job in ("sweep", "confirmation", "campaign", "swarm"):
        assert f"{job}: 4 kills" in ended.stdout
