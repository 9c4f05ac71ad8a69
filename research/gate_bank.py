"""Train the runs that are missing in `research/data/gate_bank/scores.csv`, seed by seed.

    nice -n 19 python -m research.gate_bank --hours 2

The bank contains short runs of the tiny model: the settings of `space.yaml`, each on the same
seeds. `research.gate_campaigns --noise bank` replays campaigns with them. A row is appended when
its run has ended, so an interrupted command continues with the next one. A run takes about 20 CPU
seconds.
"""

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import loptune as lt

BANK = Path(__file__).parent / "data" / "gate_bank"
SCORE = "accuracy"


def main() -> None:
    """Train missing runs until none is left or the time is up."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--hours", type=float, default=1.0, help="start no run after this many hours (default: 1)"
    )
    hours = parser.parse_args().hours
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    space = yaml.safe_load((BANK / "space.yaml").read_text())
    deadline = time.monotonic() + 3600 * hours
    for settings, seed in missing_rows(space):
        if time.monotonic() > deadline:
            break
        append_row(settings, seed, train(space, settings, seed))


def missing_rows(space: dict[str, Any]) -> Iterator[tuple[dict[str, float], int]]:
    """Yield settings and seeds without a score, all settings of a seed before the next seed."""
    banked = banked_rows()
    for seed in space["seeds"]:
        for settings in space["baselines"]:
            if (tuple(map(float, settings.values())), seed) not in banked:
                yield settings, seed


def banked_rows() -> set[tuple[tuple[float, ...], int]]:
    """Return the values of the settings, in the order of the columns, and the seed of each row."""
    with (BANK / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    banked = set()
    for row in rows:
        seed = int(row.pop("seed"))
        del row[SCORE]
        banked.add((tuple(map(float, row.values())), seed))
    return banked


def train(space: dict[str, Any], settings: dict[str, float], seed: int) -> float:
    """Train one row and return its last accuracy on held-out puzzles."""
    overrides = {**space["trainer"]["overrides"], **settings, "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        lt.train(space["trainer"]["preset"], overrides, name="row", runs_dir=folder)
        metrics = lt.load_metrics("row", folder)
    return float(metrics[space["objective"]["metric"]].dropna().iloc[-1])


def append_row(settings: dict[str, float], seed: int, score: float) -> None:
    """Append a row to the bank."""
    with (BANK / "scores.csv").open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow([*settings.values(), seed, score])


if __name__ == "__main__":
    main()
