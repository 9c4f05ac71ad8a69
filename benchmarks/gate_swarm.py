"""How long do eight proposals take together, compared with eight in sequence?

The program sleeps for two seconds in each run, so the machine has room for eight runs at a time.
Both campaigns run the same seeds; one decides each proposal before the next is made, the other
decides all eight in one `sweep gate run`.

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


def seconds(name: str, proposals: int, *, together: bool) -> float:
    """Return the wall time from the first proposal to the last decision."""
    gate.start(name, space="./space.yaml", worthwhile=1.0, secret="s", new_budget=True)
    campaign = Path(name)
    gate.run(campaign, parallel=proposals)  # measure the baseline
    began = time.monotonic()
    for number in range(proposals):
        gate.propose(campaign, [f"lr={0.2 + number / 100:g}"])
        if not together:
            gate.run(campaign, parallel=proposals)
            print(f"{name}: proposal {number + 1}, {time.monotonic() - began:.0f} s", flush=True)
    ended = gate.run(campaign, parallel=proposals)
    wall = time.monotonic() - began
    print(f"{name}: {wall:.0f} s, {ended.campaign.runs} runs", flush=True)
    return wall


def main() -> None:
    """Print both times, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proposals", type=int, default=8)
    parser.add_argument("--sleep", type=float, default=2.0, help="seconds per run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("program.py").write_text(PROGRAM, encoding="utf-8")
        Path("space.yaml").write_text(SPACE % arguments.sleep, encoding="utf-8")
        apart = seconds("apart", arguments.proposals, together=False)
        together = seconds("together", arguments.proposals, together=True)
    print(f"ratio {together / apart:.2f}")


if __name__ == "__main__":
    main()
