"""How long do eight proposals take together, compared with eight in sequence?

The program sleeps for two seconds in each run, so the machine has room for eight runs at a time.
Three campaigns run the same seeds:

- "together" decides all eight proposals in one `sweep gate run`, with eight runs at a time;
- "in sequence" decides each proposal before the next is made, also with eight runs at a time;
- "one run at a time" decides them in sequence with a single run at a time.

    python -m benchmarks.gate_swarm
"""

import argparse
import contextlib
import tempfile
import time
from pathlib import Path

from sweep.commands import gate

PROGRAM = """\
import json, random, sys, time
time.sleep(float(sys.argv[3]))
lr, seed = sys.argv[1:3]
score = random.Random(seed).gauss(0, 1) + random.Random(f"{seed} {lr}").gauss(0, 1)
print("[loptune] " + json.dumps({"step": 1, "score": score}))
"""
SPACE = """\
name: sleeping
program:
  command: [python, program.py, "{lr}", "{seed}", "%g"]
  defaults: {lr: 0.1}
objective: {metric: score, window: 1}
baselines: [{}]
search: {configurations: 0}
"""


def seconds(name: str, proposals: int, *, together: bool, parallel: int) -> float:
    """Return the wall time from the first proposal to the last decision."""
    gate.start(name, space="./space.yaml", worthwhile=1.0, secret="s", new_budget=True)
    campaign = Path(name)
    gate.run(campaign, parallel=parallel)  # measure the baseline
    began = time.monotonic()
    for number in range(proposals):
        gate.propose(campaign, [f"lr={0.2 + number / 100:g}"])
        if not together:
            gate.run(campaign, parallel=parallel)
            print(f"{name}: proposal {number + 1}, {time.monotonic() - began:.0f} s", flush=True)
    ended = gate.run(campaign, parallel=parallel)
    wall = time.monotonic() - began
    print(f"{name}: {wall:.0f} s, {ended.campaign.runs} runs", flush=True)
    return wall


def main() -> None:
    """Print the time of each campaign, and the ratios of the first one to the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proposals", type=int, default=8)
    parser.add_argument("--sleep", type=float, default=2.0, help="seconds per run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("program.py").write_text(PROGRAM, encoding="utf-8")
        Path("space.yaml").write_text(SPACE % arguments.sleep, encoding="utf-8")
        count = arguments.proposals
        together = seconds("together", count, together=True, parallel=count)
        in_sequence = seconds("in-sequence", count, together=False, parallel=count)
        one_by_one = seconds("one-run-at-a-time", count, together=False, parallel=1)
    print(f"together / in sequence {together / in_sequence:.2f}")
    print(f"together / one run at a time {together / one_by_one:.2f}")


if __name__ == "__main__":
    main()
