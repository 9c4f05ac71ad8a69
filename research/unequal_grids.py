"""Whether runs whose evaluations lie at unequal amounts of tokens are judged rightly.

    python -m research.unequal_grids           # a minute

A pair of arms has one true curve, ``START + RISE (1 - exp(-tokens / SCALE))``, and the second arm a
constant gain on top, zero in half of the pairs. Arms draw a rate (tokens a step) and a distance
between evaluations; runs draw an offset, lose a fifth of their evaluations, and end at lengths of
their own. Noise is normal: one shift a run and one draw an evaluation. Printed are the coverage of
the interval of `sweep judge --axis tokens` (90% are promised), false improvements and claims of the
wrong sign (at most 5% each), beside the comparison of the last three evaluations of each run.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dashboards import judge
from research.tables import percent, print_rows

START, RISE = 0.3, 0.4
SCALE = 60.0  # tokens
LENGTH = 150.0  # tokens, of the shortest runs
SHIFT = 0.008  # SD of a run
NOISE = 0.004  # SD of an evaluation
GAIN = 0.020
MISSING = 0.2


@dataclass(frozen=True)
class Coverage:
    """Fractions of pairs."""

    covered: float
    wrong_sign: float  # of pairs with a gain
    false_improvements: float  # of pairs without


def runs_of(random: np.random.Generator, arm: str, gain: float, seeds: int) -> pd.DataFrame:
    """Return the evaluations of an arm's runs on a grid of its own."""
    rate = random.uniform(0.6, 2.0)
    distance = random.uniform(4, 14)  # steps
    rows = []
    for seed in range(seeds):
        shift = random.normal(0, SHIFT)
        end = random.uniform(1, 1.03) * LENGTH * random.choice([1.0, 1.0, 1.3])
        steps = np.arange(random.uniform(0, distance), end / rate + distance, distance).round()
        kept = random.random(len(steps)) >= MISSING
        kept[[0, -1]] = True
        for step in steps[kept]:
            tokens = step * rate
            value = START + RISE * (1 - np.exp(-tokens / SCALE)) + gain + shift
            rows.append((arm, seed, int(step), tokens, value + random.normal(0, NOISE)))
    return pd.DataFrame(rows, columns=["arm", "seed", "step", "tokens", "score"])


def verdict_of(table: pd.DataFrame, *, by_axis: bool) -> tuple[float, float]:
    """Return the interval of the second arm's difference."""
    options = {"axis": "tokens"} if by_axis else {"step": "step"}
    verdict = judge(
        table,
        by=["arm"],
        baseline={"arm": "base"},
        score="score",
        seed="seed",
        fresh=True,
        pairing="unpaired",
        allow_unequal=True,
        **options,
    ).verdict
    assert verdict is not None
    return verdict.interval


def simulate(pairs: int, seed: int, seeds: int, *, by_axis: bool) -> np.ndarray:
    """Return the true gain and the interval's bounds of each pair, [pairs, 3]."""
    random = np.random.default_rng(seed)
    found = []
    for pair in range(pairs):
        gain = GAIN if pair % 2 else 0.0
        table = pd.concat(
            [runs_of(random, "base", 0.0, seeds), runs_of(random, "other", gain, seeds)]
        )
        found.append((gain, *verdict_of(table, by_axis=by_axis)))
    return np.array(found)


def coverage_of(pairs: int, seed: int, seeds: int = 8) -> Coverage:
    """Return the coverage of pairs judged along the axis."""
    gain, low, high = simulate(pairs, seed, seeds, by_axis=True).T
    return Coverage(
        covered=float(((low <= gain) & (gain <= high)).mean()),
        wrong_sign=float((high[gain > 0] < 0).mean()),
        false_improvements=float((low[gain == 0] > 0).mean()),
    )


def main() -> None:
    """Print the table."""
    rows = []
    for seeds in (5, 8):
        for name, by_axis in (("--axis tokens", True), ("last three evaluations", False)):
            gain, low, high = simulate(200, 0, seeds, by_axis=by_axis).T
            rows.append(
                [
                    str(seeds),
                    name,
                    percent((low <= gain) & (gain <= high)),
                    percent(low[gain == 0] > 0),
                    percent(high[gain == 0] < 0),
                    percent(high[gain > 0] < 0),
                    percent(low[gain > 0] > 0),
                ]
            )
    headings = ["seeds", "compared at", "covered", "false better", "false worse", "wrong sign"]
    print_rows("200 pairs of curves on unequal grids", [*headings, "found"], rows)


if __name__ == "__main__":
    main()
