"""Two ranks under torchrun, which are stopped in a step that takes longer than the launcher waits,
or lose their launcher.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from loptune.errors import INTERRUPTED
from loptune.run_names import SHUTDOWN_S
from tests.run_cli import ENVIRONMENT, run_cli

pytestmark = pytest.mark.slow

STEP_S = 45 if os.environ.get("LOPTUNE_SLOW_STEPS") else 6
SHORT_S = 30 if os.environ.get("LOPTUNE_SLOW_STEPS") else 2  # torchrun's default is 30

SLOW_STEPS = f"""
import os, pathlib, sys, time
from trainer.cli import main
from trainer.loop import Trainer

step = Trainer.training_step

def slow_step(self):
    if self.step == 1 and self.parallel.is_main:
        pathlib.Path("in-step-2").write_text(str(os.getpid()))
    time.sleep(0 if self.step == 0 else {STEP_S})
    while pathlib.Path("hold").exists():
        time.sleep(0.1)
    return step(self)

Trainer.training_step = slow_step
sys.exit(main())
"""


@pytest.fixture
def started(tiny_policy, tmp_path):
    """Start a run on two ranks whose second step is slow; return once that step has begun."""
    processes = []

    def start(shutdown_s: int) -> subprocess.Popen[str]:
        (tmp_path / "slow.py").write_text(SLOW_STEPS)
        settings = {
            "model.name_or_path": tiny_policy,
            "parallel.strategy": "ddp",
            "rollout.prompts_per_step": 2,
            "rollout.max_new_tokens": 8,
            "optim.update_batch_size": 16,
            "evaluation.sets": "{dev: {split: dev, size: 2}}",
            "evaluation.at_start": "false",
            "max_steps": 4,
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        torchrun += ["--shutdown-timeout", str(shutdown_s)]
        run = ["run", "tiny_kk", "--name", "r", "--runs-dir", "runs", "--offline"]
        process = subprocess.Popen(
            [sys.executable, "-m", *torchrun, "slow.py", *run, *words],
            cwd=tmp_path,
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        deadline = time.monotonic() + 400  # patience with a busy machine
        while not (tmp_path / "in-step-2").is_file():
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline, "the second step has not begun"
            time.sleep(0.1)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "runs" / "r" / "checkpoints").glob("step-*"))


def test_the_printed_time_limit_lets_a_slow_step_be_saved(started, tmp_path):
    process = started(SHUTDOWN_S)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=STEP_S + 100)[0]
    assert checkpoints(tmp_path) == ["step-2"], output
    assert f"--shutdown-timeout {SHUTDOWN_S} -m trainer resume r" in output


def test_a_short_time_limit_kills_the_ranks_without_a_checkpoint(started, tmp_path):
    process = started(SHORT_S)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=STEP_S + 100)
    assert checkpoints(tmp_path) == []


def test_trainer_stop_saves_whatever_the_time_limit(started, tmp_path):
    process = started(SHORT_S)
    hold = tmp_path / "hold"
    hold.touch()  # the step lasts until the command, however slowly it starts here, has asked
    asked = run_cli("trainer", "stop", "r", "--runs-dir", "runs", cwd=tmp_path)
    hold.unlink()
    assert asked.returncode == 0, asked.stderr
    output = process.communicate(timeout=STEP_S + 100)[0]
    assert checkpoints(tmp_path) == ["step-2"], output
    assert "-m trainer resume r" in output
    # The first rank ended by itself. The launcher may end the other one while it leaves: after the
    # checkpoint, which both wait for, it writes nothing.
    assert f"exitcode  : {INTERRUPTED}" in output and "exitcode  : -15" not in output
    again = run_cli("trainer", "stop", "r", "--runs-dir", "runs", cwd=tmp_path)
    assert again.returncode == 3 and "[not-running]" in again.stderr


def test_ranks_end_when_their_launcher_is_killed(started, tmp_path):
    process = started(SHUTDOWN_S)
    ranks = psutil.Process(process.pid).children()
    assert int((tmp_path / "in-step-2").read_text()) in {rank.pid for rank in ranks}
    assert len(ranks) == 2
    process.kill()
    _, alive = psutil.wait_procs(ranks, timeout=10)
    assert alive == []
    assert checkpoints(tmp_path) == []
