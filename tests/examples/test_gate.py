"""The loop of docs/guides/gate.md keeps what is better."""

import os
import subprocess
import sys

import pytest

from sweep.gate.campaign import Campaign
from tests.paths import ROOT
from tests.warm import warm_programs

LOOP = ROOT / "examples/gate/agent_loop.py"


@pytest.mark.slow
def test_the_loop_is_short_and_keeps_good_ideas_only(tmp_path):
    assert len(LOOP.read_text().splitlines()) <= 40
    path = f"{warm_programs()}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        [sys.executable, LOOP, "camp", "2", "--first-seeds", "3"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    campaign = Campaign(tmp_path / "camp")
    kept = [campaign.proposals[number - 1].note for number in campaign.kept]
    assert kept and all(note.endswith("good idea") for note in kept)
    assert ended.stdout.strip() == f"{campaign.kept} were kept"
