"""Damaged files of every format."""

import subprocess
import sys

from tests.paths import ROOT


def test_damaged_files_are_read_or_refused():
    line = [sys.executable, "-m", "tests.dashboards.sources.fuzz", "--files", "24"]
    ended = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count(", 0 faults") == ended.stdout.count("24 files") > 30
