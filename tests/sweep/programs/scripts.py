"""A project of somebody's own: a script whose trials take milliseconds, and its search space."""

import copy
from pathlib import Path
from typing import Any

import yaml

SCRIPT = """
import argparse, json, os, random, sys, time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", type=float)
parser.add_argument("--loss_type")
parser.add_argument("--seed", type=int)
args = parser.parse_args()
config = json.loads(Path(os.environ["LOPTUNE_CONFIG"]).read_text())
if args.loss_type == "broken":
    sys.exit("no such loss: broken")
noise = random.Random(args.seed)
lines = Path(os.environ["LOPTUNE_OUT"]) / "metrics.jsonl"
done = len(lines.read_text().splitlines()) if lines.exists() else 0
for step in range(1, 1 + config["steps"]):
    score = args.learning_rate + 0.01 * noise.random() - (0.1 if "eval_file" in config else 0.0)
    if step > done:
        time.sleep(config["step_s"])
        with lines.open("a") as file:
            line = {"step": step, "eval/accuracy": score, "eval/runtime": time.time()}
            file.write(json.dumps(line) + "\\n")
"""
KEYS = ("learning_rate", "loss_type", "seed")
SPACE: dict[str, Any] = {
    "name": "mine",
    "program": {
        "command": [
            "python",
            "train.py",
            *(word for key in KEYS for word in (f"--{key}", f"{{{key}}}")),
        ],
        "defaults": {"learning_rate": 0.1, "loss_type": "grpo", "steps": 3, "step_s": 0.01},
        "evaluations": 3,
        "held_out": {"eval_file": "test.jsonl"},
    },
    "objective": {"metric": "eval/accuracy", "window": 2},
    "parameters": {
        "learning_rate": {"uniform": [0.1, 0.5]},
        "loss_type": {"choice": ["grpo", "dapo"]},
    },
    "baselines": [{"learning_rate": 0.1, "loss_type": "grpo"}],
    "search": {"sampler": "random", "configurations": 1},
    "seeds": [0, 1],
    "limits": {"max_concurrent": 2, "max_failures": 1},
}


def write_project(folder: Path, **changes: Any) -> Path:
    """Write the script and its space, with keys of the program replaced that are no
    top-level keys.
    """
    (folder / "train.py").write_text(SCRIPT)
    space = copy.deepcopy(SPACE)
    for key, value in changes.items():
        (space if key in SPACE else space["program"])[key] = value
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(space, sort_keys=False))
    return path
