"""The examples of docs/guides/other_trainers.md, with stand-ins that write the trainers' files."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from torch.utils.tensorboard import SummaryWriter

from sweep.space.file import load_space
from tests.paths import ROOT
from tests.run_cli import run_cli

RECORDED = ROOT / "tests/data/other_trainers"
METRIC_LINES = {  # of the recorded files: step and score
    "verl": [(0, 0.4708112206216831), (5, 0.5352539802880971)],
    "prime_rl": [(0, 0.41), (10, 0.57)],
    "tinker": [(0, 0.712), (20, 0.779)],
    "nemo_rl": [(0, 0.4), (10, 0.55)],
    "skyrl": [(0, 0.35), (5, 0.5)],
    "openrlhf": [(5, 0.35), (10, 0.5)],
}
# What a trainer does with its own words: it finds its file in them, and writes line by line.
STAND_IN = """
import os, sys, time, pathlib
words = " ".join(sys.argv)
if %(seed)r not in words: sys.exit("no seed in " + words)
file = pathlib.Path(%(file)s)
file.parent.mkdir(parents=True, exist_ok=True)
with file.open("a") as lines:
    for line in pathlib.Path(%(recorded)r).read_text().splitlines(keepends=True):
        lines.write(line[:20]); lines.flush(); time.sleep(0.4)
        lines.write(line[20:]); lines.flush()
"""
FILES = {  # how the stand-in finds the file that it writes, and how it gets its seed
    "verl": ('os.environ["VERL_FILE_LOGGER_PATH"]', "data.seed=3"),
    "prime_rl": (
        'sys.argv[sys.argv.index("--orchestrator.monitors.file.path") + 1]',
        "--inference.seed 3",
    ),
    "tinker": (
        'next(word for word in sys.argv if word.startswith("log_path="))[9:] + "/metrics.jsonl"',
        "seed=3",
    ),
}
MODULES = {
    "verl": "verl/trainer/main_ppo.py",
    "tinker": "tinker_cookbook/recipes/math_rl/train.py",
    "prime_rl": "bin/rl",
}


@pytest.fixture
def place(tmp_path):
    """A folder in which the spaces run, as in the trainer's repository, with ``python`` on the
    path, which a bare Debian lacks.
    """
    shutil.copytree(ROOT / "examples/other_trainers", tmp_path / "examples/other_trainers")
    python = tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return tmp_path


def install(place, trainer):
    file, seed = FILES[trainer]
    script = place / MODULES[trainer]
    script.parent.mkdir(parents=True, exist_ok=True)
    text = STAND_IN % {"file": file, "seed": seed, "recorded": str(RECORDED / f"{trainer}.jsonl")}
    script.write_text(f"#!{sys.executable}\n{text}")
    script.chmod(0o755)


def environment(place, out):
    path = f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(place), "LOPTUNE_OUT": str(out)}


def run_trial(place, trainer):
    """Run the baseline's command on seed 3 as a trial does; return its lines of metrics."""
    space = load_space(ROOT / f"examples/other_trainers/{trainer}.yaml")
    out = place / "trial"
    out.mkdir()
    words = space.program.configure({"seed": 3}).words(out)
    words = [sys.executable if word == "python" else word for word in words]
    subprocess.run(words, cwd=place, env=environment(place, out), check=True)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row[space.objective.metric]) for row in rows]


@pytest.mark.parametrize("trainer", FILES)
def test_a_trial_gets_the_evaluations_of_the_trainer(place, trainer):
    install(place, trainer)
    assert run_trial(place, trainer) == METRIC_LINES[trainer]


def events(place, training_metric, trainer):
    """A folder of TensorBoard's events as a trainer writes them."""
    metric = load_space(ROOT / f"examples/other_trainers/{trainer}.yaml").objective.metric
    with SummaryWriter(place / "recorded") as writer:
        writer.add_scalar(training_metric, 0.3, 1)
        for step, score in METRIC_LINES[trainer]:
            writer.add_scalar(metric, score, step)
    return str(place / "recorded")


def scores(trainer):
    return [(step, pytest.approx(score)) for step, score in METRIC_LINES[trainer]]


def test_a_trial_gets_the_evaluations_of_nemo_rl(place):
    script = place / "examples/run_grpo.py"
    script.write_text(
        "import sys, shutil\n"
        "words = dict(word.split('=', 1) for word in sys.argv if '=' in word)\n"
        "assert words['grpo.seed'] == '3' and '--config' in sys.argv\n"
        f"recorded = {events(place, 'train/loss', 'nemo_rl')!r}\n"
        "shutil.copytree(recorded, words['logger.log_dir'] + '/exp_001/tensorboard')\n"
    )
    (place / "examples/configs").mkdir()
    (place / "examples/configs/grpo_math_1B.yaml").write_text("grpo: {seed: 42}\n")
    assert run_trial(place, "nemo_rl") == scores("nemo_rl")


def test_a_trial_gets_the_evaluations_of_skyrl(place):
    uv = place / "bin/uv"  # stands in for uv run -m skyrl.train.entrypoints.main_base
    uv.write_text(
        f"#!{sys.executable}\n"
        "import os, shutil, sys\n"
        "words = dict(word.split('=', 1) for word in sys.argv if '=' in word)\n"
        "assert words['trainer.seed'] == '3' and words['trainer.logger'] == 'tensorboard'\n"
        "assert 'skyrl.train.entrypoints.main_base' in sys.argv\n"
        f"recorded = {events(place, 'policy/policy_loss', 'skyrl')!r}\n"
        "shutil.copytree(recorded, os.environ['TENSORBOARD_DIR'])\n"
    )
    uv.chmod(0o755)
    assert run_trial(place, "skyrl") == scores("skyrl")


def test_a_trial_gets_the_evaluations_of_openrlhf(place):
    script = place / "openrlhf/cli/train_ppo_ray.py"
    script.parent.mkdir(parents=True)
    script.write_text(
        "import sys, shutil\n"
        "options = dict(zip(sys.argv, sys.argv[1:]))\n"
        "assert options['--train.seed'] == '3'\n"
        f"recorded = {events(place, 'train/policy_loss', 'openrlhf')!r}\n"
        "shutil.copytree(recorded, options['--logger.tensorboard_dir'] + '/ppo_1129T18:00')\n"
    )
    assert run_trial(place, "openrlhf") == scores("openrlhf")


def test_a_trainer_that_fails_fails_the_trial(place):
    relay = [sys.executable, "examples/other_trainers/relay.py", "none.jsonl", "score", "--"]
    ended = subprocess.run(
        [*relay, sys.executable, "-c", "raise SystemExit(7)"],
        cwd=place,
        env=environment(place, place),
        check=False,
    )
    assert ended.returncode == 7


@pytest.mark.slow
def test_a_sweep_runs_verl_by_its_overrides(place):
    install(place, "verl")
    script = place / MODULES["verl"]
    script.write_text(script.read_text().replace("data.seed=3", "data.seed=0"))
    ended = run_cli(
        "sweep",
        "run",
        "./examples/other_trainers/verl.yaml",
        "resources.gpus_per_trial=0",
        "--offline",
        cwd=place,
        environment={
            "PATH": environment(place, place)["PATH"],
            "PYTHONPATH": f"{ROOT}{os.pathsep}{place}",
        },
        timeout=560,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 trials: 2 complete" in ended.stdout
    assert "0.503" in ended.stdout  # the mean of its evaluations
