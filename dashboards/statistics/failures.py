"""Impute failed runs against every claim, because the scores that they would have had are unknown.

To call an arm better, its failed runs get the worst score of all runs, and failed runs of the
baseline get the best. To call it worse, its failed runs get the best score and failed runs of the
baseline the worst. A claim must hold with the imputed scores. The reported difference is the
difference between successful runs.
"""

import math
from collections.abc import Callable, Hashable, Mapping
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
    against_better, against_worse = (
        _differences_opposed_to(claim, compare, scores, baseline, tasks) for claim in CLAIMS
    )
    differences = []
    for found in comparison.differences:
        name = found.configuration
        differences.append(_with_failures(found, against_better[name], against_worse[name]))
    return replace(comparison, differences=tuple(differences))


def _differences_opposed_to(
    claim: Claim,
    compare: Callable[[Scores], Comparison],
    scores: Scores,
    baseline: str | None,
    tasks: Mapping[Hashable, str] | None,
) -> dict[str, Difference]:
    """Return configuration -> its difference with failed runs imputed against the claim."""
    opposed = compare(imputed_against(claim, scores, baseline, tasks))
    return {each.configuration: each for each in opposed.differences}


def _with_failures(
    found: Difference, against_better: Difference, against_worse: Difference
) -> Difference:
    """Return the difference of the successful runs, with the bounds and p-values that hold
    whatever the failed runs would have scored: the outer bounds and the larger p-values.

    Args:
        found: the difference of the successful runs.
        against_better: the difference with failed runs imputed to oppose that the arm is better.
        against_worse: the difference with failed runs imputed to oppose that it is worse.
    """
    interval = None
    if against_better.interval is not None and against_worse.interval is not None:
        lows, highs = zip(against_better.interval, against_worse.interval, strict=True)
        interval = (min(lows), max(highs))
    return replace(
        found,
        seeds=against_better.seeds,  # failed runs included
        interval=interval,
        outcome=outcome_of(interval, against_better.seeds),
        p=_larger(against_better.p, against_worse.p),
        p_worse=_larger(against_better.p_worse, against_worse.p_worse),
        opposed_gain=min(against_better.gain, against_worse.gain),
    )


def _larger(first: float | None, second: float | None) -> float | None:
    """Return the larger p-value; None if one of the two is unknown."""
    if first is None or second is None:
        return None
    return max(first, second)
