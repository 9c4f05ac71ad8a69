"""How often the intervals of `sweep evidence` hold the truth: the mean over settings, and a new setting's difference.

    python -m benchmarks.evidence_coverage --repeats 400

Settings differ in their true difference by tau and in their noise by up to four times; each is measured on 3 or 8
fresh seeds. Nominal: 90 %. `as if known`: DerSimonian-Laird with normal quantiles for the mean, and for a new setting
t quantiles with k - 2 degrees of freedom [Higgins et al. 2009]. tau is in standard deviations of one difference.
"""

import argparse
import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.tables import percent, print_rows
from dashboards.statistics.random_effects import random_effects

Array = NDArray[np.float64]


def as_if_known(d: Array, s: Array) -> tuple[float, float, float]:
    """DerSimonian and Laird [1986]: the mean, and the half widths of its interval and of a new setting's."""
    weights = s**-2.0
    q = float((weights * (d - np.average(d, weights=weights)) ** 2).sum())
    scale = weights.sum() - (weights**2).sum() / weights.sum()
    between = max(0.0, (q - (len(d) - 1)) / float(scale))
    weights = 1 / (s**2 + between)
    variance = 1 / float(weights.sum())
    new = float(stats.t.ppf(0.95, len(d) - 2)) * math.sqrt(between + variance)
    return float(np.average(d, weights=weights)), 1.645 * math.sqrt(variance), new


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=400, help="simulated stores a cell")
    repeats, table = parser.parse_args().repeats, []
    for settings in (3, 5, 9):
        for seeds in (3, 8):
            for tau in (0.0, 1.0, 2.0):
                generator, held = np.random.default_rng(0), []
                for _ in range(repeats):
                    noise = np.exp(generator.uniform(-math.log(2), math.log(2), settings))
                    truth = tau * generator.standard_normal(settings + 1)  # the last is the new setting's
                    apart = truth[:-1, None] + noise[:, None] * generator.standard_normal((settings, seeds))
                    d, s = apart.mean(axis=1), apart.std(axis=1, ddof=1) / math.sqrt(seeds)
                    found, (mean, half, new) = random_effects(d.tolist(), s.tolist(), 500), as_if_known(d, s)
                    assert found is not None
                    low, high = found.prediction
                    row = (abs(mean) <= half, found.mean.low <= 0 <= found.mean.high)
                    held.append((*row, abs(truth[-1] - mean) <= new, low <= truth[-1] <= high))
                rates = [percent(column) for column in np.array(held).T]
                table.append([str(settings), str(seeds), f"{tau:g}", *rates])
    headings = ["settings", "seeds", "tau", "mean, as if known", "mean", "new setting, as if known", "new setting"]
    print_rows("Coverage of 90 % intervals, %", headings, table)


if __name__ == "__main__":
    main()
