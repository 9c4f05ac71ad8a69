"""Impute failed runs against every claim, because the scores that they would have had are unknown.

To call an arm better, its failed runs get the worst score of all runs, and failed runs of the
baseline get the best. To call it worse, its failed runs get the best score and failed runs of the
baseline the worst. A claim must hold with the imputed scores. The reported difference is the
difference between successful runs.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from dashboards.statistics.compared import Comparison
from dashboards.statistics.difference import Difference, outcome_of
from dashboards.statistics.seed_noise import Scores, all_scores, finite_scores

Claim = Literal["better", "worse"]
CLAIMS: tuple[Claim, ...] = ("better", "worse")


def failed_seeds(scores: Scores) -> dict[str, int]:
    """Return the number of failed seeds of each configuration that has any."""
    failed = {}
    for name, row in scores.items():
        count = sum(1 for score in row.values() if not math.isfinite(score))
        if count > 0:
            failed[name] = count
    return failed


def ended(scores: Scores) -> Scores:
    """Return the scores of successful runs, without configurations that failed on every seed."""
    return {name: row for name, row in finite_scores(scores).items() if row}


def imputed_against(
    claim: Claim, scores: Scores, baseline: str | None, tasks: Mapping[Hashable, str] | None = None
) -> Scores:
    """Return scores, larger is better, with failed seeds imputed to oppose a claim about an arm.

    A configuration that failed on every seed is left out, because its score is unknown.
    ``baseline`` is None if the arms are compared with a number. ``tasks`` is seed -> task, if
    scores of different tasks are on different scales.
    """
    known: dict[str, list[float]] = {}
    for row in ended(scores).values():
        for seed, score in row.items():
            known.setdefault("" if tasks is None else tasks[seed], []).append(score)
    imputed = {}
    for name, row in ended(scores).items():
        lowest = (claim == "better") != (name == baseline)
        filled = {}
        for seed in scores[name]:
            of_task = known.get("" if tasks is None else tasks[seed], [math.nan])
            filled[seed] = row.get(seed, min(of_task) if lowest else max(of_task))
        imputed[name] = filled
    return imputed


def imputed_for_stopping(scores: Scores, baseline: str) -> Scores:
    """Return scores with failed seeds imputed against a gain, including arms that failed on every
    seed: a finalist that keeps failing is dropped, because a winner must be trainable.
    """
    opposed = imputed_against("better", scores, baseline)
    worst = min(all_scores(ended(scores)), default=math.nan)
    return {name: opposed.get(name, dict.fromkeys(row, worst)) for name, row in scores.items()}


def compare_with_failures(
    compare: Callable[[Scores], Comparison],
    scores: Scores,
    baseline: str | None,
    tasks: Mapping[Hashable, str] | None = None,
) -> Comparison:
    """Compare the successful runs, with bounds and p-values from failed runs imputed against each
    claim.

    Args:
        compare: the comparison of scores without failed runs.
        scores: configuration -> seed -> score, larger is better; NaN if the run failed.
        baseline: the arm to beat; None if the arms are compared with a number.
        tasks: seed -> task, if scores of different tasks are on different scales.
    """
    failed = failed_seeds(scores)
    comparison = replace(compare(ended(scores)), failed=failed)
    if not failed:
        return comparison
    opposing = []
    for claim in CLAIMS:
        opposed = compare(imputed_against(claim, scores, baseline, tasks))
        opposing.append({each.configuration: each for each in opposed.differences})
    differences = []
    for found in comparison.differences:
        number = found.configuration
        bounds = [each[number] for each in opposing if number in each]
        differences.append(_opposed(found, bounds))
    return replace(comparison, differences=tuple(differences))


def _opposed(found: Difference, bounds: Sequence[Difference]) -> Difference:
    """Return the gain of the successful runs with the outer bounds and the larger p-values."""
    intervals = [bound.interval for bound in bounds if bound.interval is not None]
    p_values = [bound.p for bound in bounds if bound.p is not None]
    p_values_worse = [bound.p_worse for bound in bounds if bound.p_worse is not None]
    interval = None
    if len(intervals) == 2:
        interval = (min(low for low, _ in intervals), max(high for _, high in intervals))
    seeds = max((bound.seeds for bound in bounds), default=found.seeds)
    return replace(
        found,
        seeds=seeds,
        interval=interval,
        outcome=outcome_of(interval, seeds),
        p=max(p_values) if len(p_values) == 2 else None,
        p_worse=max(p_values_worse) if len(p_values_worse) == 2 else None,
        opposed_gain=min((bound.gain for bound in bounds), default=found.gain),
    )
