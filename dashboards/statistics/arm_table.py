"""The table of all arms: runs, means, and each difference to the baseline with its interval.

Both directions are claims here: an arm may be shown to be better or worse. Each bound of an
interval has 95% coverage over all arms together, so an interval has 90%, and an arm is better or
worse if its interval excludes 0. A confirmation that follows others has wider intervals.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dashboards.fresh_seeds import MIN_SEEDS
from dashboards.statistics.arms import ArmScores, Layout
from dashboards.statistics.gain import Comparison, GainEstimate
from dashboards.statistics.levels import coverage
from dashboards.statistics.seed_noise import Scores

ArmOutcome = Literal["baseline", "better", "worse", "not worse", "undecided", "not compared"]


@dataclass(frozen=True, kw_only=True)
class ArmRow:
    """One arm, in units of the score."""

    name: str
    runs: int  # that have a score or failed
    failed: int
    missing: int = 0  # seeds that arms with the same seeds have, and this one lacks
    mean: float = math.nan  # of the runs with a score
    sd: float = math.nan  # standard deviation of these scores; NaN for fewer than two
    difference: float = math.nan  # to the baseline, failed runs counted as in the verdict
    interval: tuple[float, float] | None = None  # simultaneous over all arms
    coverage: float = coverage()  # of the interval; more after earlier confirmations
    p_value: float | None = None  # two-sided, corrected for the number of arms
    layout: Layout | None = None  # how the difference was taken; None for the baseline
    outcome: ArmOutcome = "not compared"


def arm_rows(
    scores: Scores,
    baseline: str,
    sign: int,
    comparison: Comparison,
    layouts: Mapping[str, Layout],
    not_worse_by: float | None = None,
) -> list[ArmRow]:
    """Return a row per arm: the baseline first, then the others from the best to the worst.

    Args:
        scores: arm -> seed -> score; NaN where the run failed.
        baseline: the arm that the others are compared with; it may be no arm of ``scores``.
        sign: 1 if larger scores are better, -1 if smaller are.
        comparison: the gains of the arms over the baseline.
        layouts: arm -> how it was compared; paired if it is not there.
        not_worse_by: the margin of a non-inferiority test, in units of the score.
    """
    estimates = {estimate.name: estimate for estimate in comparison.estimates}
    on_blocks = []  # arms whose seeds are blocks
    for name in scores:
        if layouts.get(name, "paired") not in ("unpaired", "against a number"):
            on_blocks.append(name)
    blocks: set[object] = set()
    for name in on_blocks:
        blocks.update(scores[name])
    first: list[ArmRow] = []  # the baseline
    compared: list[ArmRow] = []
    others: list[ArmRow] = []
    for name, row in scores.items():
        arm = replace(_measured(name, row), coverage=coverage(comparison.repeats))
        if name in on_blocks:
            arm = replace(arm, missing=len(blocks - set(row)))
        if name == baseline:
            first.append(replace(arm, outcome="baseline"))
        elif name in estimates:
            layout = layouts.get(name, "paired")
            compared.append(_compared(arm, estimates[name], layout, sign, not_worse_by))
        else:
            others.append(arm)
    compared.sort(key=lambda arm: sign * arm.difference, reverse=True)
    return [*first, *compared, *others]


def _measured(name: str, row: ArmScores) -> ArmRow:
    """Return an arm with its own runs only, before it is compared."""
    values = [score for score in row.values() if math.isfinite(score)]
    arm = ArmRow(name=name, runs=len(row), failed=len(row) - len(values))
    if values:
        arm = replace(arm, mean=float(np.mean(values)))
    if len(values) > 1:
        arm = replace(arm, sd=float(np.std(values, ddof=1)))
    return arm


def _compared(
    arm: ArmRow, estimate: GainEstimate, layout: Layout, sign: int, not_worse_by: float | None
) -> ArmRow:
    """Add the difference to the baseline, and its result."""
    arm = replace(arm, difference=sign * estimate.gain, layout=layout, outcome="undecided")
    if estimate.interval is None:
        return arm
    low, high = estimate.interval
    outcome: ArmOutcome = "undecided"
    if estimate.seeds < MIN_SEEDS:
        outcome = "undecided"
    elif low > 0:
        outcome = "better"
    elif high < 0:
        outcome = "worse"
    if not_worse_by is not None and estimate.seeds >= MIN_SEEDS and low > -not_worse_by:
        outcome = "better" if low > 0 else "not worse"
    p_value = None
    if estimate.p_value is not None and estimate.p_worse is not None:
        p_value = min(1.0, 2 * min(estimate.p_value, estimate.p_worse))
    bounds = (low, high) if sign > 0 else (-high, -low)
    return replace(arm, interval=bounds, p_value=p_value, outcome=outcome)
