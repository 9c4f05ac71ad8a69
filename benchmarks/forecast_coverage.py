"""How often the forecast's intervals hold the score at a trial's end, and how wide they are.

    python -m benchmarks.forecast_coverage                 # simulated learning curves, two minutes on one core
    python -m benchmarks.forecast_coverage runs/NAME       # those of a finished sweep that stopped nothing

Of 16 trials of 10 evaluations 8 have reached their end; of the others 3, 5 or 8 evaluations are known. "Width" is of
the 80 % interval, in standard deviations of the scores at the end. Standard errors are of sweeps, as trials of one
sweep share a mean curve.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.early_stopping import EVALUATIONS, PACES, WINDOW, measured, simulated
from benchmarks.tables import mean, print_rows
from dashboards.statistics.forecast import Curve, Forecast

TRIALS, LEVELS, KNOWN = 16, (0.5, 0.8, 0.9), (3, 5, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", nargs="*", type=Path, help="folder of a finished sweep (default: simulated curves)")
    parser.add_argument("--repeats", type=int, default=100, help="sweeps a cell (default: 100)")
    arguments = parser.parse_args()
    random, rows = np.random.default_rng(0), []
    kinds: dict[str, Any] = {kind: lambda pace=pace: simulated(random, TRIALS, *pace) for kind, pace in PACES.items()}
    if arguments.sweep:
        pools = {path.name: measured(path) for path in arguments.sweep}
        kinds = {name: lambda pool=pool: pool.draw(random, TRIALS) for name, pool in pools.items()}
    for kind, draw in kinds.items():
        for known in KNOWN:
            held: dict[float, list[float]] = {level: [] for level in LEVELS}
            widths = []
            for _ in range(arguments.repeats):
                curves = draw()
                seen = [EVALUATIONS] * (TRIALS // 2) + [known] * (TRIALS - TRIALS // 2)
                partly = [Curve(trial, tuple(curves.evaluations[trial, :count])) for trial, count in enumerate(seen)]
                forecast, ends = Forecast.of(partly, EVALUATIONS, WINDOW), curves.seen[:, -1]
                for level in LEVELS:
                    intervals = np.array([forecast.interval(trial, level) for trial in range(TRIALS // 2, TRIALS)])
                    inside = (intervals[:, 0] <= ends[TRIALS // 2 :]) & (ends[TRIALS // 2 :] <= intervals[:, 1])
                    held[level].append(100 * float(inside.mean()))
                    if level == 0.8:
                        widths.append(float(np.diff(intervals).mean() / ends.std()))
            rows.append([kind, str(known), *(mean(held[level]) for level in LEVELS), mean(widths)])
    headings = ["curves", "known", *(f"in the {100 * level:.0f} % interval, %" for level in LEVELS), "width, sd"]
    print_rows(f"{TRIALS} trials, half of them whole", headings, rows)


if __name__ == "__main__":
    main()
