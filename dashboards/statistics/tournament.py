"""Compare update rules at their own best: each is tuned with the same budget, then run on fresh
seeds.

Fresh seeds show whether the *settings* found by tuning differ. Tuning may find settings of
different quality for rules that are equally good at their best: one gets closer to its optimum by
chance, which no number of fresh seeds reveals. So the variance of a difference has two parts:
fresh-seed variance, from the rule's paired differences, and tuning variance. Tuning variance is
estimated from the tuning itself. The trials of a rule are split at random into halves, which are
two smaller tunings. Half the squared difference of their best scores estimates the variance of the
best score with half the budget. It includes score noise and is larger than the variance with the
full budget, so it is a conservative estimate. Rules with the same number of tuned parameters share
it. With more parameters, tuning stays further from the optimum than the halves reveal, and such a
baseline would be beaten too easily. These comparisons are rejected. `research/tournament_errors.py`
simulates the cost and the benefit of these rules.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from dashboards.statistics.difference import Difference, outcome_of
from dashboards.statistics.failures import CLAIMS, imputed_against
from dashboards.statistics.levels import SIGNIFICANCE_LEVEL
from dashboards.statistics.rounding import is_equal
from dashboards.statistics.seed_noise import Scores, oriented, paired_differences
from dashboards.trial import Mode, sign_of

_SPLITS = 100
MIN_TRIALS = 8  # complete trials per rule; with fewer, the halves are too small
# complete trials per rule with two tuned parameters; with three parameters, no number is enough
MIN_TRIALS_TWO_PARAMETERS = 24

Refusal = Literal[
    "few trials",
    "smaller budget",
    "baseline tunes more",
    "few trials of two",
    "many parameters",
    "no spread",
]


@dataclass(frozen=True)
class Tuning:
    """The tuning of a rule: its scores and the number of its parameters."""

    scores: Sequence[float]  # scores of its complete trials
    parameters: int  # number of parameters with several values
    # values that choose its best trial, larger is better; None if ``scores`` choose it. If
    # ``scores`` are the values of a guard, the score still chooses.
    chosen_by: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """Comparison of a rule with the baseline rule, each at its best."""

    found: Difference  # difference of the rules; its interval includes tuning variance
    refusal: Refusal | None = None  # why there is no interval
    sign: int = 1  # -1 if smaller scores are better

    @property
    def rule(self) -> str:
        """The name of the rule."""
        return self.found.configuration

    @property
    def difference(self) -> float:
        """The mean difference over shared fresh seeds, in units of the score."""
        return self.found.measured(self.sign)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the difference, simultaneous over all rules; None after a refusal."""
        return self.found.measured_interval(self.sign)

    @property
    def better(self) -> bool:
        """Whether the gain is significant."""
        return self.found.better

    @property
    def worse(self) -> bool:
        """Whether the loss is significant."""
        return self.found.worse


def tuning_variance(scores: Sequence[float], chosen_by: Sequence[float]) -> float:
    """Return the variance of the best trial's score in a tuning with half the budget. The best
    trial has the largest value of ``chosen_by``.
    """
    values = np.array(scores, dtype=float)
    deciding = np.array(chosen_by, dtype=float)
    half = len(scores) // 2
    order = np.random.default_rng(0).permuted(np.tile(np.arange(len(values)), (_SPLITS, 1)), axis=1)
    best = []
    for drawn in (order[:, :half], order[:, half : 2 * half]):
        places = deciding[drawn].argmax(axis=1)
        best.append(values[np.take_along_axis(drawn, places[:, None], axis=1)[:, 0]])
    return float(np.mean((best[0] - best[1]) ** 2)) / 2


def compare_rules(
    fresh: Scores,
    baseline: str,
    tunings: Mapping[str, Tuning],
    mode: Mode = "max",
    *,
    repeats: float = 1,
) -> list[RuleResult]:
    """Compare every rule with the baseline; best first.

    ``fresh`` is rule -> fresh seed -> score of its best setting; NaN for a failed seed.
    ``tunings`` is rule -> its tuning. ``repeats`` corrects p-values and intervals for earlier
    confirmations (`levels.repeats_factor`).

    Raises:
        ValueError: the baseline has no score.
    """
    sign = sign_of(mode)
    variances: dict[int, list[float]] = {}  # number of parameters -> variances
    for tuning in tunings.values():
        if len(tuning.scores) >= MIN_TRIALS:
            scores = [sign * score for score in tuning.scores]
            variance = tuning_variance(scores, tuning.chosen_by or scores)
            variances.setdefault(tuning.parameters, []).append(variance)
    gains = oriented(fresh, sign)
    paired = paired_differences(gains, baseline)
    opposing = [
        paired_differences(imputed_against(claim, gains, baseline), baseline) for claim in CLAIMS
    ]
    tests = repeats * len(paired)
    results = []
    for rule, pair in paired.items():
        found = Difference(
            configuration=rule,
            baseline=baseline,
            gain=pair.mean,
            seeds=len(pair.by_seed),
            median=float(np.median(list(pair.by_seed.values()))),
            level=SIGNIFICANCE_LEVEL / repeats,
        )
        rule_tuning = tunings[rule]
        base = tunings[baseline]
        refusal = incomparable(
            len(rule_tuning.scores), rule_tuning.parameters, len(base.scores), base.parameters
        )
        # constant differences come from coarse scores
        compared = [gains[name][seed] for name in (rule, baseline) for seed in pair.by_seed]
        if len(pair.by_seed) < 2 or is_equal(pair.by_seed.values(), compared):
            refusal = "no spread"
        if refusal is not None:
            results.append(RuleResult(found=found, refusal=refusal, sign=sign))
            continue
        tuned = float(np.mean([np.mean(variances[one.parameters]) for one in (rule_tuning, base)]))
        against_better, against_worse = (
            _tested(list(each[rule].by_seed.values()), tuned, tests) for each in opposing
        )
        low = min(against_better.low, against_worse.low)
        high = max(against_better.high, against_worse.high)
        found = replace(
            found,
            interval=(low, high),
            p=max(against_better.p_value, against_worse.p_value),
            p_worse=max(against_better.p_worse, against_worse.p_worse),
            outcome=outcome_of((low, high), found.seeds),
        )
        results.append(RuleResult(found=found, sign=sign))
    return sorted(results, key=lambda one: -one.found.gain)


class _Test(NamedTuple):
    """A gain's bounds and p-values."""

    low: float
    high: float
    p_value: float
    p_worse: float


def _tested(values: Sequence[float], tuned: float, tests: float) -> _Test:
    """Test a mean gain whose variance includes the variance ``tuned`` of tuning (Bonferroni)."""
    gain = float(np.mean(values))
    dof = len(values) - 1
    error = math.sqrt(float(np.var(values, ddof=1)) / len(values) + tuned)
    half = float(special.stdtrit(dof, 1 - SIGNIFICANCE_LEVEL / tests)) * error
    return _Test(
        gain - half,
        gain + half,
        min(1.0, tests * float(special.stdtr(dof, -gain / error))),
        min(1.0, tests * float(special.stdtr(dof, gain / error))),
    )


def incomparable(
    trials: int, parameters: int, baseline_trials: int, baseline_parameters: int
) -> Refusal | None:
    """Return the reason why a rule and the baseline cannot be compared, given their numbers of
    trials and tuned parameters; None if they can.
    """
    if min(trials, baseline_trials) < MIN_TRIALS:
        return "few trials"
    if 2 * baseline_trials < trials:
        return "smaller budget"
    if baseline_parameters > parameters:
        return "baseline tunes more"
    if parameters > 2:
        return "many parameters"
    if parameters == 2 and trials < MIN_TRIALS_TWO_PARAMETERS:
        return "few trials of two"
    if baseline_parameters == 2 and baseline_trials < MIN_TRIALS_TWO_PARAMETERS:
        return "few trials of two"
    return None
