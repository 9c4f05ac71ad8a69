"""Rules at their own best, each tuned on the same budget and then run on fresh seeds.

Fresh seeds tell whether the *settings* that were found differ. Rules that are equally good at their best are found
at settings that are not: one tuning is luckier than another, which no number of fresh seeds shows. The variance of
a difference is therefore that of the fresh seeds, by the paired differences of each rule, and that of tuning. The
second is taken from the tuning itself: the trials of a rule, split at random into halves, are two smaller tunings,
and half the squared difference of their best scores estimates the variance of a best score that half the budget
finds. That is larger than what the whole budget leaves, and the noise of the scores is in it as well, so it stands
for the difference of two rules. `benchmarks/tournament_errors.py` simulates what it costs and prevents.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from dashboards.statistics.dunnett import FALSE_CLAIMS
from dashboards.statistics.seed_noise import Scores, paired_differences

_SPLITS = 100
_FEWEST = 8  # complete trials of a rule: halves of fewer tell too little


@dataclass(frozen=True)
class Standing:
    """A rule at its best against the baseline rule at its own."""

    rule: str
    difference: float  # mean over shared fresh seeds, in units of the score
    interval: tuple[float, float] | None  # each bound holds with 95 %, simultaneous over all rules
    p_value: float | None  # one-sided, corrected for the number of rules
    better: bool


def tuning_variance(tuned: Mapping[str, Sequence[float]], mode: Literal["max", "min"] = "max") -> float:
    """Variance of the best score of a tuning with half the budget, the mean over rules.

    NaN where no rule has eight scores. ``tuned`` is rule -> score of each of its complete tuning trials.
    """
    sign, generator, found = (1.0 if mode == "max" else -1.0), np.random.default_rng(0), []
    for scores in tuned.values():
        values, half = sign * np.array(scores, dtype=float), len(scores) // 2
        if len(values) < _FEWEST:
            continue
        drawn = values[generator.permuted(np.tile(np.arange(len(values)), (_SPLITS, 1)), axis=1)]
        apart = drawn[:, :half].max(axis=1) - drawn[:, half : 2 * half].max(axis=1)
        found.append(float(np.mean(apart**2)) / 2)
    return float(np.mean(found)) if found else math.nan


def standings(
    fresh: Scores, baseline: str, tuned: Mapping[str, Sequence[float]], mode: Literal["max", "min"] = "max"
) -> list[Standing]:
    """Every rule but the baseline, the best first.

    ``fresh`` is rule -> fresh seed -> score of its best setting, NaN where the trial failed; ``tuned`` as in
    `tuning_variance`.

    Raises:
        ValueError: the baseline has no score.
    """
    sign, tuning = (1.0 if mode == "max" else -1.0), tuning_variance(tuned, mode)
    paired = paired_differences(fresh, baseline)
    found = []
    for rule, one in paired.items():
        values = np.array(list(one.by_seed.values()))
        difference, interval, p_value = one.mean.value, None, None
        # A rule that lost a seed is left with its luckier ones, and scores that never differ are coarse.
        whole = all(map(math.isfinite, fresh[rule].values())) and len(values) > 1 and float(np.ptp(values)) > 0
        if whole and not math.isnan(tuning):
            error, freedom = math.sqrt(float(values.var(ddof=1)) / len(values) + tuning), len(values) - 1
            half = float(stats.t.isf(FALSE_CLAIMS / len(paired), freedom)) * error
            interval = (difference - half, difference + half)
            p_value = min(1.0, len(paired) * float(stats.t.sf(sign * difference / error, freedom)))
        found.append(Standing(rule, difference, interval, p_value, p_value is not None and p_value < FALSE_CLAIMS))
    return sorted(found, key=lambda one: -sign * one.difference)
