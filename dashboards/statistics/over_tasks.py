"""Compare arms over several tasks if every task has its own seeds.

Arms are compared within each task, and the differences are averaged: each task has the same weight,
and tasks are not counted as runs. So an arm does not benefit from more runs on an easy task
(Simpson's paradox). The variance of the average is the sum of the tasks' variances, divided by the
squared number of tasks, with Satterthwaite's degrees of freedom. If an arm has a single run on a
task, the mean variance of the other tasks is used. Several arms are corrected by Bonferroni's
method.

If tasks share their seeds, none of this is needed: the mean of a seed over the tasks is one score.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dashboards.statistics.compared import Comparison
from dashboards.statistics.difference import Difference
from dashboards.statistics.failures import compare_with_failures
from dashboards.statistics.layouts import Pairing, layout_of, tested
from dashboards.statistics.rounding import variance
from dashboards.statistics.seed_noise import (
    Noise,
    Scores,
    finite_scores,
    noise_around_mean,
    require_baseline,
)
from loptune.errors import joined

Tasks = Mapping[Hashable, str]  # seed -> its task


@dataclass(frozen=True)
class _Part:
    """A mean within one task."""

    mean: float
    median: float
    runs: int
    variance: float  # variance of one value; NaN if there is only one value

    @classmethod
    def of(cls, values: Sequence[float], *computed_from: Iterable[float]) -> "_Part":
        of_one = variance(values, *computed_from) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), float(np.median(values)), len(values), of_one)


def compare_over_tasks(
    scores: Scores, baseline: str, tasks: Tasks, pairing: Pairing, against: float | None = None
) -> Comparison:
    """Compare every arm with the baseline, or with a number, within each task, and average the
    differences.

    Args:
        scores: arm -> seed -> score, larger is better; NaN if the run failed.
        baseline: the arm to beat, or the label of the number ``against``.
        tasks: seed -> task. Every arm has seeds in every task, and the baseline has a successful
            run in every task.
        pairing: whether seeds are blocks; decided for each arm and task if ``auto``.
        against: the number to beat, with the same sign convention as the scores.

    Raises:
        ValueError: the baseline has no score on at least one task.
    """
    names = set(tasks.values())
    count = len(names)
    if against is None:
        finite = finite_scores(scores)
        require_baseline(finite, baseline)
        lacking = names - _by_task(finite[baseline], tasks).keys()
        if lacking:
            raise ValueError(
                f"the baseline {baseline} has no score on {joined(sorted(lacking))}: choose a "
                "configuration with a successful run on every task"
            )

    def compared(counted: Scores) -> Comparison:
        rows = {name: _by_task(row, tasks) for name, row in counted.items()}
        rows = {name: row for name, row in rows.items() if len(row) == count}
        others = [name for name in rows if against is not None or name != baseline]
        differences = []
        for name in others:
            parts = [[_Part.of(list(cell.values())) for cell in rows[name].values()]]
            runs = len(counted[name])
            if against is None:
                parts = _parts(rows[name], rows[baseline], pairing)
                runs = min(runs, len(counted[baseline]))
            found = _averaged(name, baseline, parts, count, runs, len(others), against)
            differences.append(found)
        return Comparison(tuple(differences), {}, _within(counted, tasks), {})

    of_arms = baseline if against is None else None
    return compare_with_failures(compared, scores, of_arms, tasks)


def mean_over_tasks(row: Mapping[Hashable, float], tasks: Tasks) -> tuple[float, float]:
    """Return the mean of the tasks' means, and the standard deviation within tasks; NaN if no task
    has two scores.
    """
    parts = [_Part.of(list(part.values())) for part in _by_task(row, tasks).values()]
    known = [part.variance for part in parts if part.runs > 1]
    deviation = math.sqrt(float(np.mean(known))) if known else math.nan
    return float(np.mean([part.mean for part in parts])), deviation


def _by_task(row: Mapping[Hashable, float], tasks: Tasks) -> dict[str, dict[Hashable, float]]:
    by_task: dict[str, dict[Hashable, float]] = {}
    for seed, score in row.items():
        by_task.setdefault(tasks[seed], {})[seed] = score
    return by_task


def _parts(
    arm: Mapping[str, Mapping[Hashable, float]],
    base: Mapping[str, Mapping[Hashable, float]],
    pairing: Pairing,
) -> list[list[_Part]]:
    """Return the parts whose sum is the difference in each task: differences on shared seeds,
    scores of the arm, negative scores of the baseline.
    """
    pairs: list[_Part] = []
    of_arm: list[_Part] = []
    of_base: list[_Part] = []
    for task, row in arm.items():
        shared = [seed for seed in row if seed in base[task]]
        if layout_of(base[task], row, pairing) == "paired" and shared:
            differences = [row[seed] - base[task][seed] for seed in shared]
            pairs.append(_Part.of(differences, row.values(), base[task].values()))
        else:
            of_arm.append(_Part.of(list(row.values())))
            of_base.append(_Part.of([-score for score in base[task].values()]))
    return [pairs, of_arm, of_base]


def _averaged(
    name: str,
    baseline: str,
    parts: Sequence[Sequence[_Part]],
    tasks: int,
    runs: int,
    comparisons: int,
    against: float | None,
) -> Difference:
    """Return the sum of all parts divided by the number of tasks, with its test.

    A part with a single value gets the mean variance of the other parts of its kind.
    """
    total = of_dof = 0.0
    for kind in parts:
        known = [part.variance for part in kind if part.runs > 1]
        for part in kind:
            typical = float(np.mean(known)) if known else math.nan
            of_mean = (part.variance if part.runs > 1 else typical) / part.runs
            total += of_mean
            if part.runs > 1:
                of_dof += of_mean**2 / (part.runs - 1)
    every = [part for kind in parts for part in kind]
    offset = against or 0.0
    difference = Difference(
        configuration=name,
        baseline=baseline,
        gain=sum(part.mean for part in every) / tasks - offset,
        seeds=runs,
        median=sum(part.median for part in every) / tasks - offset,
        layout="by task" if against is None else "against a number",
    )
    if not total > 0 or not of_dof > 0:
        return difference
    dof = max(1, math.floor(total**2 / of_dof + 1e-6))
    return tested(difference, math.sqrt(total) / tasks, dof, comparisons)


def _within(counted: Scores, tasks: Tasks) -> Noise:
    """Return the noise of a score around the mean of its arm and task."""
    noise = Noise(math.nan, 0)
    for row in counted.values():
        for cell in _by_task(row, tasks).values():
            noise = noise.pooled(noise_around_mean(cell.values()))
    return noise
