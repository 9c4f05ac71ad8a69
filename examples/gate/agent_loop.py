"""A loop that tries changes one after the other and keeps what is better, by `sweep gate`.

    python agent_loop.py camp

Replace `next_change` by your agent and `train` by your training.
"""

import json
import random
import subprocess
import sys


def gate(*words):
    """Run a command of the gate and return its answer."""
    line = ["sweep", "gate", *words, "--json"]
    ended = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode not in (0, 10, 11):
        sys.exit(ended.returncode)  # the error is on stderr
    return json.loads(ended.stdout)


def train(change, seed):
    """Return the score of a training; here a stand-in with noise."""
    return 0.5 + 0.1 * change.count("good") + random.Random(f"{change} {seed}").gauss(0, 0.05)


def next_change(number):
    """Return what to try next."""
    return random.Random(number).choice(["good idea", "no idea"])


camp = sys.argv[1]
answer = gate("start", camp, "--worthwhile", "0.05")
current = {"baseline": "", "proposal": ""}
number = 0
while number < 10 or answer["outcome"] == "more":
    for need in answer["needs"]:
        for seed in need["seeds"]:
            score = train(current[need["arm"]], seed)
            answer = gate("record", camp, need["arm"], str(seed), str(score))
    if answer["outcome"] == "keep":
        current["baseline"] = current["proposal"]
        answer = gate("status", camp)
    elif answer["outcome"] != "more":
        number += 1
        current["proposal"] = f"{current['baseline']} {next_change(number)}"
        answer = gate("propose", camp, "--note", current["proposal"])
print(gate("status", camp)["kept"], "were kept")
