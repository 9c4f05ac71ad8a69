"""Measure the seconds from handing a trial to Ray until its first training step begins.

    python -m research.trial_start runs/NAME [runs/NAME ...]

Reads finished sweeps. Trials whose ranks had to be started are called cold, and trials that reused
ranks are called warm. If there is an evaluation before the first step, it is included, and also
printed separately.
"""

import json
import re
import sys
from pathlib import Path
from statistics import median
from typing import Any


def lines(path: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True)
        if line.endswith("\n")
    ]


def main(folders: list[str]) -> None:
    for folder in map(Path, folders):
        starts: dict[str, float] = {}
        for event in lines(folder / "events.jsonl"):
            if event["event"] == "trial":
                starts.setdefault(f"c{event['configuration']:03d}-s{event['seed']}", event["time"])
        seen = set[int]()
        by_kind: dict[str, list[float]] = {"cold": [], "warm": []}
        print(f"{folder.name}: seconds to the first training step")
        for trial, scheduled in sorted(starts.items(), key=lambda item: item[1]):
            rows = lines(folder / "trials" / trial / "metrics.jsonl")
            first = next((row for row in rows if row["step"] == 1 and "time/step" in row), None)
            if first is None:
                continue
            evaluation = next(
                (row.get("time/evaluation", 0.0) for row in rows if row["step"] == 0), 0.0
            )
            log = (folder / "trials" / trial / "stderr.log").read_text()
            pid = int(re.findall(r"^rank 0: process (\d+)", log, re.MULTILINE)[0])
            kind = "warm" if pid in seen else "cold"
            seen.add(pid)
            seconds = first["time"] - first["time/step"] - scheduled
            by_kind[kind].append(seconds)
            print(f"  {trial}  {kind}  {seconds:6.2f}  (evaluation before it {evaluation:.2f})")
        for kind, values in by_kind.items():
            if values:
                print(
                    f"  {kind}: median {median(values):.2f}, largest {max(values):.2f}, n "
                    f"{len(values)}"
                )


if __name__ == "__main__":
    main(sys.argv[1:])
