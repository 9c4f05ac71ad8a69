"""Are runs judged correctly if their evaluations are at unequal amounts of tokens?

    python -m research.unequal_grids           # a minute
    python -m research.unequal_grids --real    # real training runs, half a minute

Both arms of a pair have the same true curve, ``START + RISE (1 - exp(-tokens / SCALE))``. The
second arm has an additional constant gain, which is zero in half of the pairs. Each arm has a
random rate (tokens per step) and a random distance between evaluations. Each run has a random
offset, lacks a fifth of its evaluations, and ends at a random length. Noise is normal: one shift
per run and one error per evaluation. The table shows the coverage of the interval of `sweep judge
--axis tokens` (90% are promised), false improvements and claims with the wrong sign (at most 5%
each), and the same for a comparison of the last three evaluations of each run.

Real runs: DrQ-v2 on 24 tasks of the DeepMind Control Suite, eight to ten seeds each (Yarats et al.
2021, arXiv:2107.09645). The seeds of a task are split at random into two arms, so every claim is
false. An arm keeps every evaluation, or only every second to every sixth one. Its runs lack a fifth
of these and end at 70 to 100% of their length.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from dashboards import judge
from dashboards.statistics.arms import compare_arms
from dashboards.statistics.budgets import common_budget, score_at
from dashboards.trial import Curve
from research.tables import percent, print_rows

START, RISE = 0.3, 0.4
SCALE = 60.0  # [tokens]
LENGTH = 150.0  # length of the shortest runs [tokens]
SHIFT = 0.008  # SD of the shift of a run
NOISE = 0.004  # SD of the error of an evaluation
GAIN = 0.020
MISSING = 0.2
PAIRS = 200
CURVES = Path(__file__).parent / "data" / "curves.csv.gz"


def runs_of(random: np.random.Generator, arm: str, gain: float, seeds: int) -> pd.DataFrame:
    """Return the evaluations of an arm's runs, on the arm's own grid of steps."""
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


def simulated_row(seeds: int, *, by_axis: bool) -> list[str]:
    """Return a row of the table of simulated pairs."""
    gain, low, high = simulate(PAIRS, 0, seeds, by_axis=by_axis).T
    return [
        str(seeds),
        "--axis tokens" if by_axis else "last three evaluations",
        percent((low <= gain) & (gain <= high)),
        percent(low[gain == 0] > 0),
        percent(high[gain == 0] < 0),
        percent(high[gain > 0] < 0),
        percent(low[gain > 0] > 0),
    ]


def thinned(curve: Curve, every: int, offset: int, random: np.random.Generator) -> Curve:
    """Return a run's curve on a coarser grid, cut at 70 to 100% of its length."""
    steps = np.array(curve.steps)
    last = max(2, int(len(steps) * random.uniform(0.7, 1.0)))
    kept = np.arange(len(steps)) % every == offset % every
    kept &= random.random(len(steps)) >= MISSING
    kept[[0, last - 1]] = True
    kept[last:] = False
    return Curve(tuple(steps[kept]), tuple(np.array(curve.values)[kept]))


def last_three(curves: Sequence[Curve]) -> list[float]:
    """Return the scores of runs at their own ends, as the mean of the last three evaluations."""
    return [curve.score(3) for curve in curves]


def at_common_amount(curves: Sequence[Curve]) -> list[float]:
    """Return the scores of runs at the largest common amount."""
    budget = common_budget(curves, "frame")
    return [score_at(curve, budget) for curve in curves]


def real_curves() -> dict[str, list[Curve]]:
    """Return task -> the curves of its seeds."""
    by_task: dict[str, list[Curve]] = {}
    for (task, _), rows in pd.read_csv(CURVES).groupby(["task", "seed"]):
        curve = Curve(tuple(map(float, rows.frame)), tuple(rows.score))
        by_task.setdefault(str(task), []).append(curve)
    return by_task


def false_claims(
    cases: int,
    scores_of: Callable[[Sequence[Curve]], list[float]],
    seed: int = 0,
    *,
    equal_grids: bool = False,
) -> dict[str, tuple[float, float]]:
    """Return task -> fractions of cases in which one of two equal arms is called better, worse."""
    random = np.random.default_rng(seed)
    rates = {}
    for task, curves in real_curves().items():
        found = []
        half = len(curves) // 2
        for _ in range(cases):
            order = random.permutation(len(curves))
            every = random.integers(1, 7, size=2)
            offset = random.integers(0, 6, size=2)
            if equal_grids:
                every[:] = 1
            runs = []
            for place, index in enumerate(order[: 2 * half]):
                arm = place // half
                runs.append(thinned(curves[index], int(every[arm]), int(offset[arm]), random))
            scores = scores_of(runs)
            by_arm = {"0": dict(enumerate(scores[:half])), "1": dict(enumerate(scores[half:]))}
            [difference] = compare_arms(by_arm, "0", "unpaired").differences
            low, high = difference.interval or (-np.inf, np.inf)
            found.append((low > 0, high < 0))
        better, worse = np.mean(found, axis=0)
        rates[task] = (float(better), float(worse))
    return rates


def real_row(layout: str, cases: int) -> list[str]:
    """Return a row of the table of real training runs."""
    scores_of, equal_grids = LAYOUTS[layout]
    rates = np.array(list(false_claims(cases, scores_of, equal_grids=equal_grids).values()))
    either = rates.mean(axis=1)
    error = either.std(ddof=1) / np.sqrt(len(either))
    better, worse = 100 * rates.mean(axis=0)
    return [
        layout,
        f"{100 * either.mean():.1f} ± {100 * error:.1f}",
        f"{100 * either.max():.1f}",
        f"{better:.1f}, {worse:.1f}",
    ]


LAYOUTS = {
    "largest common amount": (at_common_amount, False),
    "last three evaluations": (last_three, False),
    "largest common amount, every evaluation kept": (at_common_amount, True),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="use thinned real training runs")
    parser.add_argument("--cases", type=int, default=200, help="cases per task")
    options = parser.parse_args()
    if options.real:
        headings = ["compared at", "false claims per side", "worst task", "better, worse"]
        rows = [real_row(layout, options.cases) for layout in LAYOUTS]
        print_rows(f"24 tasks, {options.cases} cases each: false claims [%]", headings, rows)
        return
    rows = []
    for seeds in (5, 8):
        for by_axis in (True, False):
            rows.append(simulated_row(seeds, by_axis=by_axis))
    headings = ["seeds", "compared at", "covered", "false better", "false worse", "wrong sign"]
    print_rows(f"{PAIRS} pairs of curves on unequal grids", [*headings, "found"], rows)


if __name__ == "__main__":
    main()
