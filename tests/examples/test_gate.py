"""The loop and the spaces of docs/guides/gate.md keep what is better."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from loptune.reporting import PREFIX
from loptune.yaml_document import read_yaml
from sweep.gate.campaign import Campaign
from sweep.programs.placeholders import fill
from sweep.space.file import load_space
from tests.paths import ROOT
from tests.warm import warm_programs

EXAMPLES = ROOT / "examples/gate"
LOOP = EXAMPLES / "agent_loop.py"
# what the programs of these loops print, as their documents show it
LOGS = {
    "autoresearch": "---\nval_bpb:          0.997900\ntraining_seconds: 300.1\n",
    "autoresearch_rl": "---\neval_score:       0.4500\ngsm8k_pass1:      0.5200\n",
    "pi_autoresearch": "running 40 tests\nMETRIC seconds=12.3\nMETRIC memory=44\n",
    "nemo_rl": "Validation Results:\n    • Accuracy: 0.7012\nstep 2\n    • Accuracy: 0.7421\n",
}
SCORES = {"autoresearch": 0.9979, "autoresearch_rl": 0.45, "pi_autoresearch": 12.3}
SCORES |= {"nemo_rl": 0.7421, "trackio": 0.75}
TRACKIO = """\
import os, sqlite3
with sqlite3.connect(os.environ["TRACKIO_DIR"] + "/project.db") as database:
    database.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, metrics TEXT)")
    for text in ('{"accuracy": 0.5}', '{"accuracy": 0.75}', '{"loss": 0.1}'):
        database.execute("INSERT INTO metrics (metrics) VALUES (?)", (text,))
"""


def program(folder, text):
    """Write an executable file."""
    folder.mkdir(exist_ok=True)
    path = folder / "uv"
    path.write_text(text)
    path.chmod(0o755)
    shutil.copy(path, folder.parent / "autoresearch.sh")


@pytest.mark.parametrize("name", SCORES)
def test_a_space_reads_the_score_that_a_loop_prints(name, tmp_path):
    path = EXAMPLES / f"{name}.yaml"
    assert len(path.read_text().splitlines()) <= 20
    spec = load_space(path)
    (tmp_path / "log").write_text(LOGS.get(name, ""))
    (tmp_path / "train.py").write_text(TRACKIO)
    program(tmp_path / "bin", f"#!/bin/sh\ncat {tmp_path / 'log'}\n")
    command = read_yaml(path).data["program"]["command"]
    ended = subprocess.run(
        fill(command, {"seed": 3, "lr": 1e-5}),
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]),
            "LOPTUNE_OUT": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    reported = json.loads(line.removeprefix(PREFIX))
    assert reported == {"step": 1, spec.objective.metric: SCORES[name]}


@pytest.mark.parametrize("name", LOGS)
def test_a_program_that_fails_reports_nothing(name, tmp_path):
    command = read_yaml(EXAMPLES / f"{name}.yaml").data["program"]["command"]
    program(tmp_path / "bin", "#!/bin/sh\nexit 3\n")
    ended = subprocess.run(
        fill(command, {"seed": 3}),
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]),
            "LOPTUNE_OUT": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (3, "")


BENCHMARK = """\
name: benchmark
program: {command: [python, bench.py, "{seed}"]}
objective: {metric: seconds, mode: min, window: 1, worthwhile: 0.05}
baselines: [{}]
search: {configurations: 0}
"""
SLOWER = """\
import random, sys
seconds = 1.5 + random.Random(sys.argv[1]).gauss(0, 0.01)
print('[loptune] {"step": 1, "seconds": %f}' % seconds)
"""


@pytest.mark.slow
def test_the_job_fails_for_a_pull_request_that_is_slower(tmp_path):
    def git(*words):
        who = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        said = subprocess.run(("git", *who, *words), cwd=tmp_path, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr
        return said.stdout.strip()

    git("init", "-q", "-b", "main")
    (tmp_path / "benchmark.yaml").write_text(BENCHMARK)
    (tmp_path / "bench.py").write_text(SLOWER.replace("1.5", "1.0"))
    git("add", "."), git("commit", "-q", "-m", "base")
    base = git("rev-parse", "HEAD")
    (tmp_path / "bench.py").write_text(SLOWER)
    git("commit", "-q", "-a", "-m", "pull request")
    job = yaml.safe_load((EXAMPLES / "benchmark.yml").read_text())["jobs"]["benchmark"]
    start, decide = (step["run"].replace("/tmp/camp", "camp") for step in job["steps"][2:])
    path = f"{warm_programs()}{os.pathsep}{os.environ['PATH']}"
    for script, status in ((start, 0), (decide, 1)):
        ended = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "BASE": base},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == status, ended.stdout + ended.stderr
    assert Campaign(tmp_path / "camp").kept == [1]


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
