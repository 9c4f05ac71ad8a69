"""The wheel with the core's requirements alone, in an empty environment."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.dashboards.sources.fuzz import events, formats, write
from tests.paths import ROOT

pytestmark = pytest.mark.slow


def command(*words, **options):
    return subprocess.run(words, capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the wheel, also with extras; return the function that runs a command there."""
    uv = shutil.which("uv", path=os.path.dirname(sys.executable)) or shutil.which("uv")
    if uv is None:
        pytest.skip("needs uv")
    folder = tmp_path_factory.mktemp("core")
    source = folder / "source"
    packages = ("dashboards", "loptune", "rewards", "search_spaces", "sweep", "trainer")
    for name in packages:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    python = str(folder / "venv/bin/python")
    command(uv, "venv", "-q", "--python", sys.executable, str(folder / "venv"))
    line = (uv, "pip", "install", "-q", "--python", python, "-c", str(ROOT / "constraints.txt"))
    probe = command(*line, "--dry-run", "pyyaml", "setuptools")
    if probe.returncode:
        pytest.skip(f"the package index does not answer: {probe.stderr[-300:]}")
    built = command(uv, "build", "--wheel", "-q", "-o", str(folder), str(source))
    assert built.returncode == 0, built.stderr
    [wheel] = folder.glob("*.whl")

    def install(extra=""):
        ended = command(*line, f"{wheel}{extra}")
        assert ended.returncode == 0, ended.stderr

    install()

    def run(*words):
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return command(python, "-m", *words, cwd=folder, env=environment)

    run.folder, run.install = folder, install
    return run


def judged(run, place, *words):
    ended = run("sweep", "judge", place, "--score", "acc", "--json", *words)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_the_core_judges_files_and_decides_by_recorded_scores(installed):
    write(installed.folder / "csv", formats()["CSV"][0])
    said = judged(installed, "csv/a.csv", "--by=loss", "--baseline=loss=grpo")
    assert said["verdict"] is not None
    rows = [f"r{n},finished,{n},{n % 2},0.{5 + n}" for n in range(4)]
    (installed.folder / "export.csv").write_text(
        "Name,State,ID,loss,acc\n" + "\n".join(rows) + "\n"
    )
    assert judged(installed, "export.csv", "--by=loss", "--baseline=loss=0")["arms"]
    for run in range(4):
        files = {
            "mlruns/1/meta.yaml": b"experiment_id: '1'\nname: exp\n",
            f"mlruns/1/{run}/meta.yaml": f"run_id: '{run}'\nstatus: 3\n".encode(),
            f"mlruns/1/{run}/params/loss": b"grpo" if run % 2 else b"dapo",
            f"mlruns/1/{run}/params/seed": str(run // 2).encode(),
            f"mlruns/1/{run}/metrics/acc": f"1 0.{5 + run} 0\n".encode(),
        }
        write(installed.folder, files)
    assert judged(installed, "mlruns", "--by=loss", "--baseline=loss=grpo")["verdict"] is not None
    for words in (
        ["start", "camp", "--worthwhile", "0.01"],
        ["record", "camp", "baseline", "0", "1"],
    ):
        ended = installed("sweep", "gate", *words, "--json")
        assert json.loads(ended.stdout), ended.stderr


def test_an_extra_that_is_missing_is_named_and_works_once_it_is_installed(installed):
    for number, run in enumerate(("grpo-s0", "dapo-s1", "grpo-s1", "dapo-s0")):
        write(installed.folder / f"tb/{run}", {"events.out.tfevents.1": events(number**2 / 10)})
    words = ("tb", "--names={loss}-s{seed}", "--by=loss", "--baseline=loss=grpo")
    missing = installed("sweep", "judge", *words, "--score=acc")
    assert missing.returncode == 3 and "loptune[tensorboard]" in missing.stderr
    mcp = installed("sweep", "mcp")
    assert mcp.returncode == 3 and "loptune[mcp]" in mcp.stderr
    trained = installed("sweep", "run", "quickstart")
    assert trained.returncode == 3 and "loptune[sweep]" in trained.stderr
    installed.install("[tensorboard,mcp]")
    assert judged(installed, *words)["arms"]
    assert installed("sweep", "mcp").returncode == 0  # standard input is empty, so it ends
