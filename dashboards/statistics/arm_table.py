"""Table of all arms: runs, means, and the difference of each arm from the baseline with its
interval.

The tests are two-sided: an arm may be shown to be better or worse. Each bound of an interval has
95% simultaneous coverage over all arms, so an interval has 90%. An arm is better or worse if its
interval excludes 0 and it has at least `MIN_SEEDS` seeds. Intervals of a repeated confirmation are
wider.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dashboards.statistics.compared import Comparison
from dashboards.statistics.difference import Difference, Layout, Outcome, outcome_of
from dashboards.statistics.layouts import ArmScores
from dashboards.statistics.over_tasks import Tasks, mean_over_tasks
from dashboards.statistics.seed_noise import Scores, noise_around_mean

ArmOutcome = Literal["baseline", "not compared"] | Outcome
# layouts in which seeds are only labels
_NOT_ON_BLOCKS = ("unpaired", "by task", "against a number")


@dataclass(frozen=True, kw_only=True)
class ArmRow:
    """One arm: its own runs, and its difference from the baseline."""

    configuration: str
    name: str  # display name
    runs: int  # number of runs with a score and of failed runs
    failed: int
    missing: int = 0  # number of seeds that other arms ran and this arm did not
    mean: float = math.nan  # mean of the runs with a score, in units of the score
    sd: float = math.nan  # standard deviation of these scores; NaN for fewer than two
    sign: int = 1  # -1 if smaller scores are better
    is_baseline: bool = False
    # difference from the baseline, with failed runs imputed as in the verdict; None for the
    # baseline, and for an arm that cannot be compared
    found: Difference | None = None

    @property
    def difference(self) -> float:
        """The difference from the baseline in units of the score; NaN if there is none."""
        return math.nan if self.found is None else self.found.measured(self.sign)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the difference, simultaneous over all arms; None if there is none."""
        return None if self.found is None else self.found.measured_interval(self.sign)

    @property
    def coverage(self) -> float | None:
        """The coverage of the interval, higher after earlier confirmations; None for the baseline
        and for an arm that cannot be compared.
        """
        return None if self.found is None else self.found.coverage

    @property
    def p_value(self) -> float | None:
        """The two-sided p value, corrected for the number of arms; None without a test."""
        return None if self.found is None else self.found.two_sided_p

    @property
    def layout(self) -> Layout | None:
        """The layout of the comparison; None for the baseline and for an arm that cannot be
        compared.
        """
        return None if self.found is None else self.found.layout

    @property
    def outcome(self) -> ArmOutcome:
        """The conclusion from the difference."""
        if self.is_baseline:
            return "baseline"
        return "not compared" if self.found is None else self.found.outcome


def arm_rows(
    scores: Scores,
    baseline: str,
    sign: int,
    comparison: Comparison,
    names: Mapping[str, str],
    not_worse_by: float | None = None,
    tasks: Tasks | None = None,
) -> list[ArmRow]:
    """Return a row per arm: the baseline first, then the others from the best to the worst.

    Args:
        scores: arm -> seed -> score; NaN where the run failed.
        baseline: the arm that the others are compared with; it may be missing from ``scores``.
        sign: 1 if larger scores are better, -1 if smaller are.
        comparison: the gains of the arms over the baseline.
        names: arm -> display name.
        not_worse_by: the margin of a non-inferiority test, in units of the score.
        tasks: seed -> task, if means are taken over tasks.
    """
    found = {each.configuration: each for each in comparison.differences}
    on_blocks = []  # arms whose seeds are blocks
    for arm in scores:
        if not tasks and (arm not in found or found[arm].layout not in _NOT_ON_BLOCKS):
            on_blocks.append(arm)
    blocks: set[object] = set()
    for arm in on_blocks:
        blocks.update(scores[arm])
    first: list[ArmRow] = []  # the baseline
    compared: list[ArmRow] = []
    others: list[ArmRow] = []
    for arm, runs in scores.items():
        row = _measured(arm, names[arm], runs, sign, tasks)
        if arm in on_blocks:
            row = replace(row, missing=len(blocks - set(runs)))
        if arm == baseline:
            first.append(replace(row, is_baseline=True))
        elif arm in found:
            each = found[arm]
            outcome = outcome_of(each.interval, each.seeds, not_worse_by)
            compared.append(replace(row, found=replace(each, outcome=outcome)))
        else:
            others.append(row)
    compared.sort(key=lambda row: sign * row.difference, reverse=True)
    return [*first, *compared, *others]


def _measured(arm: str, name: str, runs: ArmScores, sign: int, tasks: Tasks | None) -> ArmRow:
    """Return an arm with its own runs only, before it is compared."""
    values = [score for score in runs.values() if math.isfinite(score)]
    row = ArmRow(
        configuration=arm, name=name, runs=len(runs), failed=len(runs) - len(values), sign=sign
    )
    if values and tasks:
        scored = {seed: score for seed, score in runs.items() if math.isfinite(score)}
        mean, deviation = mean_over_tasks(scored, tasks)
        return replace(row, mean=mean, sd=deviation)
    if values:
        row = replace(row, mean=float(np.mean(values)))
    return replace(row, sd=noise_around_mean(values).sd)
