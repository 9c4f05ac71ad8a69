"""Eight open proposals to the tiny model, killed with SIGKILL while they train, and resumed.

    python -m tests.faults.tiny_swarm     # 36 trainings, two kills

Two campaigns have the same secret and the same eight proposals. One runs undisturbed. Of the
other, ``sweep gate run`` and all processes that it has started are killed twice, each time after
some more trainings have ended, and it is started again. Its events then have to equal those of the
first, and no training that had ended may have run again.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from sweep.commands import gate
from sweep.gate.campaign import Campaign
from sweep.search.history import ENDED
from tests.run_cli import ENVIRONMENT

SPACE = {
    "name": "tiny-swarm",
    "trainer": {
        "preset": "tiny_kk",
        "overrides": {
            "max_steps": 1,
            "rollout.prompts_per_step": 2,
            "rollout.group_size": 2,
            "optim.update_batch_size": 4,
            "evaluation.completions_per_problem": 2,
            "evaluation.sets": {"dev": {"split": "dev", "size": 8}},
        },
    },
    "objective": {"metric": "eval/accuracy", "window": 1},
    "baselines": [{}],
    "search": {"configurations": 0},
}
RATES = (1e-5, 3e-5, 2e-4, 4e-4, 5e-4, 1e-3, 2e-3, 1e-2)  # of the eight proposals
DECIDED = (0, 10)  # exit codes: the last proposal was kept, or discarded
_LOOK_S = 0.2


def start(name: str) -> None:
    """Start a campaign with all proposals open."""
    gate.start(
        name, space="./space.yaml", worthwhile=0.2, first_seeds=3, secret="s", new_budget=True
    )
    for rate in RATES:
        gate.propose(Path(name), [f"optim.lr={rate}"])


def ended_trainings(name: str) -> int:
    """Return the number of results in the event logs of a campaign's batches."""
    count = 0
    for path in Path(name, "runs").glob("*/events.jsonl"):
        count += path.read_text(encoding="utf-8").count(f'"{ENDED}"')
    return count


def run(name: str) -> subprocess.Popen[bytes]:
    """Start ``sweep gate run``."""
    line = [sys.executable, "-P", "-m", "sweep", "gate", "run", name, "--parallel", "2"]
    return subprocess.Popen(
        line,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill_after(process: subprocess.Popen[bytes], name: str, results: int) -> None:
    """Kill a command, and everything in its session, once so many trainings have ended."""
    while ended_trainings(name) < results:
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode} before it was killed")
        time.sleep(_LOOK_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def decided(name: str) -> list[str]:
    """Return the events of a campaign without the first, which has its name and the time."""
    return Path(name, "events.jsonl").read_text(encoding="utf-8").splitlines()[1:]


def main() -> None:
    """Print how both campaigns ended, and fail if they differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=2)
    kills = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("space.yaml").write_text(yaml.safe_dump(SPACE), encoding="utf-8")
        for name in ("calm", "killed"):
            start(name)
        began = time.monotonic()
        if run("calm").wait() not in DECIDED:
            raise RuntimeError("the undisturbed campaign did not end")
        print(f"undisturbed: {time.monotonic() - began:.0f} s", flush=True)
        total = ended_trainings("calm")
        began = time.monotonic()
        for number in range(kills):
            process = run("killed")
            kill_after(process, "killed", total * (number + 1) // (kills + 1))
            print(f"kill {number + 1}: {ended_trainings('killed')} of {total} trainings had ended")
        if run("killed").wait() not in DECIDED:
            raise RuntimeError("the killed campaign did not end")
        print(f"killed: {time.monotonic() - began:.0f} s", flush=True)
        trained = ended_trainings("killed")
        outcomes = [each.decision["outcome"] for each in Campaign(Path("killed")).proposals]
        print(json.dumps({"trainings": [total, trained], "outcomes": outcomes}))
        if decided("calm") != decided("killed") or total != trained:
            raise SystemExit("the campaigns differ")
        print(f"equal: {len(decided('calm'))} events")


if __name__ == "__main__":
    main()
