"""How long do eight proposals take together, compared with eight in sequence?

The program sleeps for two seconds in each run, so the machine has room for eight runs at a time.
Both campaigns run the same seeds; one decides each proposal before the next is made, the other
decides all eight in one `sweep gate run`.

    python -m benchmarks.gate_swarm
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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


def gate(*words: str, folder: Path) -> dict[str, Any]:
    """Return the answer of ``sweep gate WORDS``."""
    line = [sys.executable, "-m", "sweep", "gate", *words, "--json"]
    ended = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 10, 11):
        raise RuntimeError(ended.stderr)
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def seconds(folder: Path, name: str, proposals: int, *, together: bool) -> float:
    """Return the wall time from the first proposal to the last decision."""
    options = ["--space", "./space.yaml", "--worthwhile", "1", "--secret", "s", "--new-budget"]
    gate("start", name, *options, folder=folder)
    run = ["run", name, "--parallel", str(proposals)]
    gate(*run, folder=folder)  # the baseline
    started = time.monotonic()
    for number in range(proposals):
        gate("propose", name, f"lr={0.2 + number / 100:g}", folder=folder)
        if not together:
            gate(*run, folder=folder)
    answer = gate(*run, folder=folder)
    wall = time.monotonic() - started
    print(f"{name}: {wall:.0f} s, {answer['runs']} runs", flush=True)
    return wall


def main() -> None:
    """Print both times, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proposals", type=int, default=8)
    parser.add_argument("--sleep", type=float, default=2.0, help="seconds of a run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "program.py").write_text(PROGRAM)
        (folder / "space.yaml").write_text(SPACE % arguments.sleep)
        apart = seconds(folder, "apart", arguments.proposals, together=False)
        together = seconds(folder, "together", arguments.proposals, together=True)
    print(f"ratio {together / apart:.2f}")


if __name__ == "__main__":
    main()
