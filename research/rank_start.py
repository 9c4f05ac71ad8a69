"""Measure the time between handing a trial of several ranks to Ray and its first training step.

    python -m research.rank_start [WORKERS] [STRATEGY]

"Ranks up" is Ray's part: placement, processes, environment. Then the ranks import torch and
transformers, connect to each other, and build model, data and engine.

The script runs three short trials of the tiny model sequentially. The first trial starts its ranks,
and the others reuse them. The times come from the sweep's events and from the files of the ranks.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from research.trial_start import lines

OVERRIDES = {
    "max_steps": 1,
    "evaluation.every_steps": 1,
    "evaluation.at_start": False,
    "checkpoint.every_steps": 1,
    "optim.update_batch_size": 24,
}


def write_space(folder: Path, workers: int, strategy: str) -> Path:
    alphas = [0.1, 0.2, 0.3]
    space = {
        "name": "start",
        "trainer": {"preset": "tiny_kk", "overrides": {**OVERRIDES, "parallel.strategy": strategy}},
        "parameters": {"algorithm.ar_alpha": {"choice": alphas}},
        "baselines": [{"algorithm.ar_alpha": alpha} for alpha in alphas],
        "search": {"sampler": "random", "configurations": 0},
        "resources": {"workers_per_trial": workers},
        "limits": {"max_concurrent": 1},
    }
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(space))
    return path


def main(workers: int = 2, strategy: str = "ddp") -> None:
    print(f"{workers} workers, {strategy}: seconds from being handed to Ray")
    print("trial     ranks up  imported, connected, built  first step begins")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        command = [
            sys.executable,
            "-m",
            "sweep",
            "run",
            str(write_space(folder, workers, strategy)),
        ]
        subprocess.run(
            [*command, "--runs-dir", scratch, "--offline"], check=True, stdout=subprocess.DEVNULL
        )
        for event in lines(folder / "start" / "events.jsonl"):
            if event["event"] != "trial":
                continue
            trial = folder / "start" / "trials" / f"c{event['configuration']:03d}-s{event['seed']}"
            first = next(row for row in lines(trial / "metrics.jsonl") if "time/step" in row)
            begun = first["time"] - first["time/step"] - event["time"]
            pattern = r"ready at step 0 after ([\d.]+) s"
            built = max(
                float(seconds)
                for seconds in re.findall(pattern, (trial / "stderr.log").read_text())
            )
            # "Ranks up": placed, started and with their environment. Building follows at once, and
            # then the step.
            print(f"{trial.name}  {begun - built:9.1f}  {built:26.1f}  {begun:17.1f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2, sys.argv[2] if len(sys.argv) > 2 else "ddp")
