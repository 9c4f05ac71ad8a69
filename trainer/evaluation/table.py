"""The results of evaluations as tables: by set and difficulty, and as in arXiv:2505.12929, table 1.

A row of that table has means over checkpoints, set by set, with intervals over problems.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from trainer.config.evaluation import EvaluationConfig
from trainer.errors import printable
from trainer.evaluation.estimators import accuracy_interval, pass_at_k
from trainer.evaluation.evaluate import EvaluationResult, correct_by_problem
from trainer.types import Rollout

_WIDTH = 160  # columns
_RESAMPLES = 2000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EvaluationRow:
    """One set, or the part of it with one difficulty or from one source."""

    set: str
    by: Literal["all", "difficulty", "source"]
    value: str  # the difficulty or source; empty for all
    problems: int
    completions: int  # of all problems together
    accuracy: float  # mean over completions: avg@n
    low: float  # 95 % interval of the accuracy, over problems
    high: float
    pass_at_k: float
    k: int
    reward: float
    completion_length: float  # tokens
    truncated: float  # share of the completions, as are the following
    timeouts: float  # of the scoring
    errors: float  # of the scoring
    unparsed: float  # scored, but without a readable answer


def evaluation_rows(result: EvaluationResult, pass_at: Mapping[str, int]) -> list[EvaluationRow]:
    """A row for every set, followed by one for each of its difficulties and sources where there are several."""
    rows = []
    for name, rollouts in result.rollouts.items():
        k = pass_at[name]
        rows.append(_row(name, "all", "", rollouts, k))
        for by in ("difficulty", "source"):
            values = sorted({getattr(r.problem, by) for r in rollouts}, key=_in_order)
            if len(values) > 1:
                for value in values:
                    part = [r for r in rollouts if getattr(r.problem, by) == value]
                    rows.append(_row(name, by, value, part, k))
    return rows


def _row(
    name: str, by: Literal["all", "difficulty", "source"], value: str, rollouts: Sequence[Rollout], k: int
) -> EvaluationRow:
    count = len(rollouts)
    correct, completions = correct_by_problem(rollouts)
    low, high = accuracy_interval(correct / completions, completions)
    return EvaluationRow(
        set=name,
        by=by,
        value=value,
        problems=len(correct),
        completions=count,
        accuracy=float((correct / completions).mean()),
        low=low,
        high=high,
        pass_at_k=float(pass_at_k(correct, completions, k).mean()),
        k=k,
        reward=math.fsum(r.reward for r in rollouts) / count,
        completion_length=sum(len(r.completion.token_ids) for r in rollouts) / count,
        truncated=sum(r.completion.finish_reason == "length" for r in rollouts) / count,
        timeouts=sum(r.scoring == "timeout" for r in rollouts) / count,
        errors=sum(r.scoring == "error" for r in rollouts) / count,
        unparsed=sum(r.scoring == "ok" and not r.parsed for r in rollouts) / count,
    )


def print_rows(rows: Sequence[EvaluationRow]) -> None:
    """Print the table. Sets with different numbers of completions have them in a column."""
    counts = {row.completions // row.problems for row in rows}
    ks = {row.k for row in rows if row.completions > row.problems}
    table = Table(box=None, pad_edge=False)
    table.add_column("set", no_wrap=True)
    table.add_column("part", no_wrap=True)
    headings = ["problems", *(["completions each"] if len(counts) > 1 else [])]
    headings += [f"avg@{min(counts)}" if len(counts) == 1 and ks else "accuracy", "95 % interval"]
    headings += [f"pass@{min(ks)}" if len(ks) == 1 else "pass@k"] if ks else []
    headings += ["length", "truncated", "unparsed", "timeouts", "errors"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        part = "all" if row.by == "all" else printable(f"{row.by} {row.value or 'none'}")
        count = row.completions // row.problems
        cells = [str(row.problems), *([str(count)] if len(counts) > 1 else [])]
        cells += [f"{row.accuracy:.3f}", f"{row.low:.3f} .. {row.high:.3f}"]
        at_k = f"{row.pass_at_k:.3f}" + (f" @{row.k}" if len(ks) > 1 else "")
        cells += [at_k if count > 1 else "-"] if ks else []
        cells += [f"{row.completion_length:.1f}"]
        cells += [f"{share:.1%}" for share in (row.truncated, row.unparsed, row.timeouts, row.errors)]
        table.add_row(row.set if row.by == "all" else "", part, *cells)
    _print_table(table)


@dataclass(frozen=True)
class Cell:
    """One figure: the mean over checkpoints, and its 95 % interval over problems."""

    set: str  # empty for the mean of the row
    measure: str
    value: float
    low: float
    high: float


def results_row(checkpoints: Sequence[Mapping[str, Sequence[Rollout]]], evaluation: EvaluationConfig) -> list[Cell]:
    """The cells of a row: of every set its accuracy, and pass@k where the set asks for it; then their mean.

    A set of one completion per problem has its accuracy, of n completions the mean of them (avg@n). pass@k is
    that of each checkpoint, averaged: several checkpoints are not one policy with more completions. All
    checkpoints have answered the same problems in the same order.
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
        cells.append(Cell(name, measure, float(columns[0].mean()), *accuracy_interval(columns[0], completions)))
        k = evaluation.sets[name].pass_at_k
        if k is not None:
            columns.append(np.mean([pass_at_k(*of_one, k) for of_one in counts], axis=0))
            interval = accuracy_interval(columns[1], completions)
            cells.append(Cell(name, f"pass@{k}", float(columns[1].mean()), *interval))
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
    _print_table(table)


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


def _print_table(table: Table) -> None:
    """Print it as wide as it is; a narrower terminal breaks its lines between words."""
    Console(width=_WIDTH, color_system=None).print(table)


def _in_order(value: str) -> tuple[float, str]:
    """Numbers by size (bands by their lower end), words after them."""
    head = value.split("-")[0]
    return (float(head), value) if head.replace(".", "", 1).isdigit() else (math.inf, value)
