"""How often does a 95% interval of an evaluation contain the true accuracy: a bootstrap over
problems, and the interval that loptune uses?

    python -m research.evaluation_intervals           # two minutes on one core

If there are several completions per problem, problems differ in difficulty: their accuracies are
drawn from a beta distribution with mean p, such that the completions of a problem have an
intraclass correlation of 0.3.
"""

import argparse
import itertools

import numpy as np
from scipy import stats

from research.tables import mean, percent, print_rows
from trainer.evaluation.estimators import accuracy_interval

CORRELATION = 0.3


def draw(
    generator: np.random.Generator, problems: int, completions: int, accuracy: float
) -> np.ndarray:
    """Return the number of correct completions of each problem, [P]."""
    if completions == 1:
        return generator.binomial(1, accuracy, problems)
    weight = 1 / CORRELATION - 1
    chances = generator.beta(accuracy * weight, (1 - accuracy) * weight, problems)
    return generator.binomial(completions, chances)


def bootstrap(correct: np.ndarray, completions: int) -> tuple[float, float]:
    """Return the percentile bootstrap over problems; for single completions, by its exact binomial
    distribution.
    """
    if completions > 1:
        fractions = correct / completions
        drawn = np.random.default_rng(0).integers(0, len(fractions), (500, len(fractions)))
        low, high = np.quantile(fractions[drawn].mean(axis=1), [0.025, 0.975])
    else:
        low, high = stats.binom.ppf([0.025, 0.975], len(correct), correct.mean()) / len(correct)
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--evaluations", type=int, default=500, help="simulated evaluations per cell"
    )
    parser.add_argument(
        "--completions", type=int, nargs="+", default=[1, 4, 16], help="completions per problem"
    )
    arguments = parser.parse_args()
    rows = []
    cells = itertools.product(arguments.completions, (30, 100, 300), (0.02, 0.06, 0.5, 0.8, 0.95))
    for completions, problems, accuracy in cells:
        generator = np.random.default_rng(0)
        held: dict[str, list[bool]] = {"bootstrap": [], "used": []}
        widths: dict[str, list[float]] = {"bootstrap": [], "used": []}
        for _ in range(arguments.evaluations):
            correct = draw(generator, problems, completions, accuracy)
            intervals = {
                "bootstrap": bootstrap(correct, completions),
                "used": accuracy_interval(correct / completions, np.full(problems, completions)),
            }
            for kind, (low, high) in intervals.items():
                held[kind].append(low <= accuracy <= high)
                widths[kind].append(high - low)
        row = [str(completions), str(problems), f"{accuracy}"]
        rows.append(
            row + [cell for kind in held for cell in (percent(held[kind]), mean(widths[kind], 3))]
        )
    headings = ["completions", "problems", "accuracy", "bootstrap holds it, %", "width"]
    print_rows("95% intervals of an accuracy", [*headings, "used holds it, %", "width"], rows)


if __name__ == "__main__":
    main()
