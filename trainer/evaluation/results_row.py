"""A row of a results table as in arXiv:2505.12929, table 1: means over checkpoints, set by set, with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from trainer.config.schema import EvaluationConfig
from trainer.evaluation.estimators import accuracy_interval, bootstrap_interval, pass_at_k
from trainer.evaluation.evaluate import correct_by_problem
from trainer.evaluation.table import print_table
from trainer.types import Rollout

_RESAMPLES = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One figure: the mean over checkpoints, and its 95 % interval over problems."""

    set: str  # empty for the mean of the row
    measure: str
    value: float
    low: float
    high: float


def results_row(
    checkpoints: Sequence[Mapping[str, Sequence[Rollout]]], evaluation: EvaluationConfig
) -> list[Cell]:
    """The cells of a row: of every set its accuracy, and pass@k where the set asks for it; then their mean.

    A set of one completion per problem has its accuracy, of n completions the mean of them (avg@n). pass@k is that
    of each checkpoint, averaged: several checkpoints are not one policy with more completions.

    Args:
        checkpoints: the rollouts of every set, for each checkpoint; the same problems in the same order.
        evaluation: how the sets were answered.
    """
    cells: list[Cell] = []
    of_problems: list[Floats] = []  # of every set, [P, cells of the set]
    for name, own in ((name, evaluation.of_set(name)) for name in checkpoints[0]):
        counts = [correct_by_problem(answered[name]) for answered in checkpoints]
        correct = np.sum([correct for correct, _ in counts], axis=0)
        completions = np.sum([completions for _, completions in counts], axis=0)
        columns: list[Floats] = [correct / completions]
        n = own.completions_per_problem
        measure = f"avg@{n}" if n > 1 else "greedy" if own.temperature == 0 else "accuracy"
        cells.append(Cell(name, measure, float(columns[0].mean()), *accuracy_interval(correct, completions)))
        k = evaluation.sets[name].pass_at_k
        if k is not None:
            columns.append(np.mean([pass_at_k(*of_one, k) for of_one in counts], axis=0))
            cells.append(Cell(name, f"pass@{k}", float(columns[1].mean()), *bootstrap_interval(columns[1])))
        of_problems.append(np.stack(columns, axis=1))
    return [*cells, Cell("", "mean", float(np.mean([cell.value for cell in cells])), *_mean_interval(of_problems))]


def print_results_row(cells: Sequence[Cell], steps: Sequence[int]) -> None:
    """Print the row in percent, with a line of intervals below."""
    table = Table(box=None, pad_edge=False)
    for cell in cells:
        table.add_column(f"{cell.set}\n{cell.measure}".strip(), justify="right", no_wrap=True)
    table.add_row(*[f"{100 * cell.value:.2f}" for cell in cells])
    table.add_row(*[f"{100 * cell.low:.1f} .. {100 * cell.high:.1f}" for cell in cells])
    print(f"mean of {len(steps)} checkpoints, steps {', '.join(map(str, steps))} [%, with 95 % intervals]:")
    print_table(table)


def _mean_interval(of_problems: Sequence[Floats]) -> tuple[float, float]:
    """Bootstrap interval of the mean of all columns' means; problems are drawn within their set."""
    generator = np.random.default_rng(0)
    total: Floats = np.zeros(_RESAMPLES)
    for values in of_problems:
        problems = len(values)
        weights = generator.multinomial(problems, np.full(problems, 1 / problems), size=_RESAMPLES)
        total += (weights @ values / problems).sum(axis=1)
    low, high = np.quantile(total / sum(values.shape[1] for values in of_problems), [0.025, 0.975])
    return float(low), float(high)
