"""A project of somebody's own: a script whose trials take milliseconds, and its search space."""

import copy
import json
from pathlib import Path
from typing import Any

import yaml

from tests.sweep.harness import states
from tests.tables import table

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
SPACE: dict[str, Any] = table("script_space")


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


def assert_complete(root: Path, steps: int) -> None:
    """Assert that every trial has ended well and its script has written every line once."""
    for trial, state in states(root).items():
        lines = (root / "trials" / trial / "out" / "metrics.jsonl").read_text().splitlines()
        assert state == "COMPLETE"
        assert [json.loads(line)["step"] for line in lines] == list(range(1, steps + 1))
