"""The program of `tests.faults.kills`: ``python toy.py LR SEED``, a training of milliseconds."""

import json
import os
import sys
import time

LOG = "LOPTUNE_TEST_LOG"  # environment variable with the file of all starts and ends


def score_of(lr: float, seed: int) -> float:
    """Return the score of a run; it differs between seeds."""
    return lr + 0.002 * (seed * 7 % 5)


def train(lr: float, seed: int) -> float | None:
    """Train and return the score, or None if the run fails."""
    _record(event="start", lr=lr, seed=seed)
    time.sleep(0.01)
    _record(event="end", lr=lr, seed=seed)
    return None if seed % 4 == 3 and lr < 0.2 else score_of(lr, seed)


def _record(**values: object) -> None:
    with open(os.environ[LOG], "a", encoding="utf-8") as log:
        log.write(json.dumps({**values, "time": time.time()}) + "\n")


if __name__ == "__main__":
    score = train(float(sys.argv[1]), int(sys.argv[2]))
    if score is None:
        sys.exit("this seed fails")
    print("[loptune]", json.dumps({"step": 1, "acc": score}), flush=True)
