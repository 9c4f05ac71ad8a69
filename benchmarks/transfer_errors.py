"""How often `sweep transfer` says that a parameter carries over, or that its order is reversed.

    python -m benchmarks.transfer_errors --repeats 150

A search of 12 configurations in two parameters of equal effect on [0, 1], scores with a noise of 0.2; the anchors are
trained where both have their effect, the second has the opposite one, or none, or neither has any.
"""

import argparse

import numpy as np

from benchmarks.tables import percent, print_rows
from dashboards.statistics.rank_agreement import parameter_weights, rank_agreement

THERE = {"both carry over": (1, 1), "the second is reversed": (1, -1), "only the first": (1, 0), "nothing": (0, 0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=150, help="simulated transfers a cell")
    repeats, table = parser.parse_args().repeats, []
    for anchors in (5, 6):
        for name, effects in THERE.items():
            generator, said = np.random.default_rng(0), []
            for _ in range(repeats):
                points = generator.uniform(size=(12, 2))
                here = points.sum(axis=1) + 0.2 * generator.standard_normal(12)
                chosen = np.argsort(here)[np.linspace(0, 11, anchors).round().astype(int)]
                there = points[chosen] @ np.array(effects) + 0.2 * generator.standard_normal(anchors)
                weights = parameter_weights([{"first": float(a), "second": float(b)} for a, b in points[chosen]])
                told = [rank_agreement(here[chosen].tolist(), there.tolist(), own) for own in weights.values()]
                said.append([found for one in told for found in (one.low > 0, one.high < 0)])
            table.append([str(anchors), name, *(percent(column) for column in np.array(said).T)])
    headings = ["anchors", "there", "first: carry over", "first: reversed", "second: carry over", "second: reversed"]
    print_rows("What is said, %", headings, table)


if __name__ == "__main__":
    main()
