"""Try one change after another and keep the improvements: python agent_loop.py camp 10

Replace `next_change` by your agent and `train` by your training.
"""

import json
import random
import subprocess
import sys


def gate(*words):
    """Return the answer of a command of the gate."""
    ended = subprocess.run(["sweep", "gate", *words, "--json"], stdout=subprocess.PIPE, check=False)
    return json.loads(ended.stdout) if ended.returncode in (0, 10, 11, 12) else sys.exit(2)


def train(change, seed):
    """Return the score of a training run; here a noisy stand-in."""
    return 0.5 + 0.1 * change.count("good") + random.Random(f"{change} {seed}").gauss(0, 0.02)


def next_change(number):
    """Return the next change to try."""
    return random.Random(number).choice(["no idea", "good idea"])


camp, proposals = sys.argv[1], int(sys.argv[2])
arms = {"first": "", "baseline": "", "proposal": ""}  # arm -> the change that it runs with
answer = gate("start", camp, "--worthwhile", "0.05", *sys.argv[3:])
while answer["outcome"] == "more" or answer["proposals"] < proposals:
    if answer["outcome"] == "keep":
        arms["baseline"] = arms["proposal"]  # measured on fresh seeds next
    if answer["outcome"] != "more":
        answer = gate("status", camp)
    if answer["outcome"] == "ended":  # a limit is reached, such as --max-runs
        break
    if answer["outcome"] == "ready":
        arms["proposal"] = f"{arms['baseline']} {next_change(answer['proposals'])}".strip()
        answer = gate("propose", camp, "--note", arms["proposal"])
    for arm, seed in [(need["arm"], seed) for need in answer["needs"] for seed in need["seeds"]]:
        answer = gate("record", camp, arm, str(seed), str(train(arms[arm], seed)))
print(answer["kept"], "were kept")
