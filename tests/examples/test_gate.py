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


def run_in(folder, words):
    """Run a command with the programs of ``folder/bin``."""
    return subprocess.run(
        words,
        cwd=folder,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]),
            "LOPTUNE_OUT": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", SCORES)
def test_a_space_reads_the_score_that_a_loop_prints(name, tmp_path):
    path = EXAMPLES / f"{name}.yaml"
    assert len(path.read_text().splitlines()) <= 20
    spec = load_space(path)
    (tmp_path / "log").write_text(LOGS.get(name, ""))
    (tmp_path / "train.py").write_text(TRACKIO)
    program(tmp_path / "bin", f"#!/bin/sh\ncat {tmp_path / 'log'}\n")
    command = read_yaml(path).data["program"]["command"]
    ended = run_in(tmp_path, fill(command, {"seed": 3, "lr": 1e-5}))
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stdout.splitlines()
    reported = json.loads(line.removeprefix(PREFIX))
    assert reported == {"step": 1, spec.objective.metric: SCORES[name]}


@pytest.mark.parametrize("name", LOGS)
def test_a_program_that_fails_reports_nothing(name, tmp_path):
    command = read_yaml(EXAMPLES / f"{name}.yaml").data["program"]["command"]
    program(tmp_path / "bin", "#!/bin/sh\nexit 3\n")
    ended = run_in(tmp_path, fill(command, {"seed": 3}))
    assert (ended.returncode, ended.stdout) == (3, "")


@pytest.mark.parametrize(("decided", "fails"), [(0, True), (10, False), (11, True), (2, True)])
def test_the_job_fails_unless_the_base_is_no_better(decided, fails, tmp_path):
    job = yaml.safe_load((EXAMPLES / "benchmark.yml").read_text())["jobs"]["benchmark"]
    start, decide = job["steps"][2:]
    commands = tmp_path / "sweep"
    commands.write_text(
        '#!/bin/sh\necho "$@" >> called\n'
        f"case $2 in start) exit 11;; propose) exit {decided};; *) exit 3;; esac\n"
    )
    commands.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    statuses = []
    for step in (start, decide):
        ended = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step["run"]],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "BASE": "abc1234"},
            check=False,
        )
        statuses.append(ended.returncode)
    assert statuses == [0, int(fails)]
    said = (tmp_path / "called").read_text()
    assert "gate start /tmp/camp --space benchmark.yaml" in said
    assert "gate propose /tmp/camp --revision abc1234 --run" in said


@pytest.mark.slow
def run_loop(folder, proposals, *options):
    """Run the loop in a campaign with these limits."""
    path = f"{warm_programs()}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        [sys.executable, LOOP, "camp", str(proposals), "--first-seeds", "3", *options],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    campaign = Campaign.read(folder / "camp")
    assert ended.stdout.strip() == f"{campaign.kept} were kept"
    return campaign


def test_the_loop_is_short_and_keeps_good_ideas_only(tmp_path):
    assert len(LOOP.read_text().splitlines()) <= 45
    campaign = run_loop(tmp_path, 2)
    kept = [campaign.proposals[number - 1].note for number in campaign.kept]
    assert kept and all(note.endswith("good idea") for note in kept)


@pytest.mark.parametrize("limit", [["--max-proposals", "1"], ["--max-runs", "12"]])
def test_the_loop_ends_with_its_campaign(limit, tmp_path):
    campaign = run_loop(tmp_path, 5, *limit)
    assert campaign.verdict().outcome == "ended"
    assert len(campaign.proposals) < 5
