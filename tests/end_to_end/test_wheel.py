"""A wheel of this tree, installed in an environment of its own and used in an empty folder."""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tests.hidden_packages import hide_our_packages
from tests.paths import ROOT
from tests.run_cli import ENVIRONMENT

pytestmark = pytest.mark.slow

PACKAGED = (
    "dashboards",
    "loptune",
    "rewards",
    "search_spaces",
    "sweep",
    "trainer",
    "LICENSE",
    "README.md",
    "pyproject.toml",
)
SHORT = (
    "max_steps=1",
    "evaluation.every_steps=1",
    "checkpoint.every_steps=1",
    "rollout.prompts_per_step=2",
)
SMALL = "evaluation.sets={dev: {source: generated, split: dev, people: [2, 3], size: 4}}"
EVERY_NAME = f"""
import sys
from pathlib import Path
import search_spaces, trainer
from sweep.space.file import find_space, load_space
from trainer.config.extends import preset_specs
from trainer.config.schema import load_config

assert not trainer.__file__.startswith({str(ROOT)!r} + "/trainer"), trainer.__file__
for name in preset_specs():
    load_config(name)
for name in sys.argv[1:]:
    load_space(find_space(name))
print(*preset_specs())
"""


def run(*command, cwd, **environment):
    variables = {**os.environ, **ENVIRONMENT, **environment}
    del variables["PYTHONPATH"]
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=variables, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def binaries(tmp_path_factory):
    """The environment's programs; what loptune depends on lies behind it on the path."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
        source,
        cwd=folder,
    )
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=folder)
    [site_packages] = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    [wheel] = folder.glob("loptune-*.whl")
    python = environment / "bin/python"
    run(*pip, "--python", python, "install", "--no-deps", "--ignore-installed", wheel, cwd=folder)
    return environment / "bin"


def test_every_preset_and_space_is_there_by_name(binaries, tmp_path):
    spaces = [path.stem for path in (ROOT / "search_spaces").glob("*.yaml")]
    specs = run(binaries / "python", "-c", EVERY_NAME, *spaces, cwd=tmp_path).split()
    presets = {path.stem for path in (ROOT / "trainer/config/presets").glob("*.yaml")}
    assert presets - set(specs) <= {"papers"}  # what other presets extend


def test_a_project_in_an_empty_folder(binaries, tmp_path):
    run(binaries / "trainer", "init", "mine", "--model", "random", cwd=tmp_path)
    run(binaries / "trainer", "run", "run.yaml", "--dry-run", cwd=tmp_path / "mine")


def test_a_sweep_with_its_report_beside_files_named_like_our_packages(binaries, tmp_path):
    hide_our_packages(tmp_path)
    small = [f"trainer.{override}" for override in (*SHORT, SMALL)]
    small += [
        "search={configurations: 0}",
        "seeds=[0]",
        "objective.window=1",
        "baselines=[{algorithm.ar_alpha: 0.3, lopti: false}]",
    ]
    (tmp_path / "mine.py").write_text(
        "import loptune as lt\n\nif __name__ == '__main__':\n"
        f"    trials = lt.sweep('quickstart', {small!r}, name='first')\n"
        "    print(trials['state'].tolist(), lt.load_results('first')['state'].tolist())\n"
    )
    printed = run(binaries / "python", "mine.py", cwd=tmp_path)
    assert "['COMPLETE'] ['COMPLETE']" in printed
    assert (tmp_path / "runs/first/report/report.html").stat().st_size > 100_000
