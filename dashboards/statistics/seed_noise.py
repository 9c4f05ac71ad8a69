"""What the scores of a sweep say beyond the noise between seeds.

A configuration's scores are a mapping of seed to score. Two configurations are compared on the seeds they
share: a seed fixes the order of the problems and the randomness of the rollouts, so its effect cancels in the
difference. A missing or non-finite score is a trial without a result and is left out. Trials that a scheduler
stopped for a weak start must not be counted: what remains of their configuration is its luckier seeds.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dashboards.statistics.dunnett import MAX_SEEDS, largest_t, minimum_detectable_effect, seeds_for

Vector = NDArray[np.float64]
Scores = Mapping[str, Mapping[Hashable, float]]  # configuration -> seed -> score


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; bounds are NaN where the data cannot give any."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference:
    """A configuration minus the baseline on the seeds that both have."""

    by_seed: Mapping[Hashable, float]
    mean: Interval


@dataclass(frozen=True)
class Verdict:
    """Whether the best configuration beats the baseline by more than the noise between seeds.

    Where seeds cannot tell (one seed, no shared seeds, no spread at all), the numbers that need an estimate of
    the noise are None and ``evidence`` is False. ``finding``, ``reason`` and ``next_step`` are one sentence each.
    """

    best: str  # the best configuration besides the baseline
    baseline: str
    winner: str  # best, or the baseline where nothing scored above it
    evidence: bool
    difference: float  # mean over shared seeds of best - baseline, in units of the score
    interval: tuple[float, float] | None  # 95 %, simultaneous over all comparisons
    p_value: float | None  # two-sided, corrected for having picked the best of `comparisons`
    comparisons: int  # configurations compared with the baseline
    seeds: int  # seeds that best and baseline share
    deviation: float | None  # standard deviation of one score between seeds
    minimum_detectable_effect: float | None  # true difference found 8 times in 10 with these seeds
    seeds_needed: int | None  # seeds per configuration that find a true difference of this size 8 times in 10
    confirmation_seeds: int | None  # fresh seeds of best and baseline alone that do
    finding: str
    reason: str
    next_step: str


def paired_differences(scores: Scores, baseline: str, level: float = 0.95) -> dict[str, PairedDifference]:
    """Every configuration minus the baseline on shared seeds, each with its own paired t interval.

    The intervals are not corrected for looking at many; `verdict` is. Configurations that share no seed with
    the baseline are left out; with one shared seed the bounds are NaN.
    """
    finite = _finite(scores)
    _require(finite, baseline)
    found = {}
    for name, by_seed in finite.items():
        shared = {seed: by_seed[seed] - finite[baseline][seed] for seed in by_seed if seed in finite[baseline]}
        if name == baseline or not shared:
            continue
        values = np.array(list(shared.values()))
        mean, half = float(values.mean()), math.nan
        if len(values) > 1:
            half = float(stats.t.ppf((1 + level) / 2, len(values) - 1) * stats.sem(values))
        found[name] = PairedDifference(shared, Interval(mean, mean - half, mean + half))
    return found


def seed_deviation(scores: Scores) -> tuple[float, int]:
    """Standard deviation of one score between seeds, and its degrees of freedom.

    The root mean square of what the additive model ``score = configuration + seed + noise`` leaves over (least
    squares; configurations may lack some seeds). NaN and 0 where nothing is left over to judge by.
    """
    finite = {name: by_seed for name, by_seed in _finite(scores).items() if by_seed}
    seeds = list(dict.fromkeys(seed for by_seed in finite.values() for seed in by_seed))
    cells = [(i, seeds.index(s), y) for i, by_seed in enumerate(finite.values()) for s, y in by_seed.items()]
    design = np.zeros((len(cells), len(finite) + len(seeds)))
    for row, (configuration, seed, _) in enumerate(cells):
        design[row, [configuration, len(finite) + seed]] = 1
    observed = np.array([y for _, _, y in cells])
    freedom = len(cells) - int(np.linalg.matrix_rank(design)) if cells else 0
    if freedom == 0:
        return math.nan, 0
    residuals = observed - design @ np.linalg.lstsq(design, observed, rcond=None)[0]
    return math.sqrt(float(residuals @ residuals) / freedom), freedom


def verdict(scores: Scores, baseline: str, mode: Literal["max", "min"] = "max", alpha: float = 0.05) -> Verdict:
    """Compare the best configuration with the baseline on matched seeds.

    Dunnett's many-to-one test (two-sided) in a randomised block design with seeds as blocks: the differences
    of all configurations to the baseline share one estimate of the noise, that of the additive model of
    `seed_deviation`, so that few seeds of many configurations suffice. The p value is the probability that
    the largest of all the |t| reaches that of the best configuration when no configuration differs: it is
    corrected for having picked the best. Sign flips of paired differences cannot do this: with 3 seeds their
    smallest two-sided p is 1/4.

    Departure: where the best configuration's own differences vary more than the pooled noise, their variance
    is used. It guards against a configuration that is noisier than the others (false evidence 2-5 % of sweeps
    instead of up to 11 % when one of ten has three times the noise) and costs some power.

    In simulated sweeps of 10 configurations, one of them better than the rest by d standard deviations of one
    score between seeds, the difference is found in 9 of 10 sweeps from d = 6 with 2 seeds, d = 4.2 with 3 and
    d = 3 with 5. Smaller ones need more: ``seeds_needed`` says how many for the difference at hand. That
    number is optimistic, because the best of many looks better than it is.

    Args:
        scores: configuration -> seed -> score of trials that ran to their end.
        baseline: the configuration to beat.
        mode: whether larger or smaller scores are better.
        alpha: level of the test.

    Raises:
        ValueError: the baseline has no score.
    """
    finite = _finite(scores)
    _require(finite, baseline)
    sign = 1.0 if mode == "max" else -1.0
    paired = paired_differences(finite, baseline)
    repeated = {name: one for name, one in paired.items() if len(one.by_seed) > 1}
    candidates = repeated or paired
    if not candidates:
        return _unmatched(finite, baseline, sign)
    best = max(candidates, key=lambda name: sign * candidates[name].mean.value)
    difference = candidates[best].mean.value
    matched = {
        name: {seed: y for seed, y in finite[name].items() if seed in finite[baseline]}
        for name in [baseline, *candidates]
    }
    deviation, freedom = seed_deviation(matched)
    silent = _undecided(best, baseline, difference, sign, len(candidates[best].by_seed), len(candidates))
    # Equal scores on all seeds are coarse scores, not the absence of noise.
    if freedom == 0 or deviation <= 1e-9 * max(abs(y) for row in matched.values() for y in row.values()):
        return silent

    own = float(np.array(list(candidates[best].by_seed.values())).std(ddof=1))
    error = max(math.sqrt(2) * deviation, own) / math.sqrt(silent.seeds)
    largest = largest_t(tuple(frozenset(one.by_seed) for one in candidates.values()), freedom)
    p_value = float((np.sum(largest >= abs(difference) / error) + 1) / (len(largest) + 1))
    half = float(np.quantile(largest, 1 - alpha)) * error
    return _worded(
        replace(
            silent,
            evidence=p_value < alpha and sign * difference > 0,
            interval=(difference - half, difference + half),
            p_value=p_value,
            deviation=deviation,
            minimum_detectable_effect=minimum_detectable_effect(
                deviation, silent.seeds, len(candidates) + 1, alpha
            ),
            seeds_needed=seeds_for(sign * difference, deviation, len(candidates) + 1),
            confirmation_seeds=seeds_for(sign * difference, deviation),
        )
    )


def _undecided(best: str, baseline: str, difference: float, sign: float, seeds: int, comparisons: int) -> Verdict:
    improves = sign * difference > 0
    if seeds < 2:
        reason = f"They share {_count(seeds, 'seed')}, so nothing tells the difference from chance."
        step = "Run the baseline and the best configurations on at least 3 seeds each."
    else:
        reason = f"The scores do not vary over {seeds} seeds: they are too coarse to tell noise from effect."
        step = "Evaluate on more problems, or run more seeds."
    return Verdict(
        best=best,
        baseline=baseline,
        winner=best if improves else baseline,
        evidence=False,
        difference=difference,
        interval=None,
        p_value=None,
        comparisons=comparisons,
        seeds=seeds,
        deviation=None,
        minimum_detectable_effect=None,
        seeds_needed=None,
        confirmation_seeds=None,
        finding=_finding(best, baseline, difference, improves),
        reason=reason,
        next_step=step,
    )


def _unmatched(scores: Scores, baseline: str, sign: float) -> Verdict:
    means = {name: float(np.mean(list(row.values()))) for name, row in scores.items() if row}
    others = {name: mean for name, mean in means.items() if name != baseline}
    if others:
        best = max(others, key=lambda name: sign * others[name])
        return _undecided(best, baseline, others[best] - means[baseline], sign, 0, 0)
    alone = _undecided(baseline, baseline, 0.0, sign, 0, 0)
    return replace(
        alone,
        finding=f"Only the baseline {baseline} has scores.",
        reason="There is nothing to compare it with.",
        next_step="Run the other configurations.",
    )


def _finding(best: str, baseline: str, difference: float, improves: bool) -> str:
    if improves:
        return f"{best} scores {difference:+.3g} against the baseline {baseline}."
    return (
        f"No configuration scored better than the baseline {baseline}; the nearest is {best} ({difference:+.3g})."
    )


def _worded(verdict: Verdict) -> Verdict:
    """The verdict with a reason and a next step that quote its numbers."""
    assert verdict.interval is not None and verdict.p_value is not None
    low, high = verdict.interval
    tested = (
        f"95 % interval {low:+.3g} to {high:+.3g}, p = {max(verdict.p_value, 1e-4):.2g}, corrected for "
        f"{_count(verdict.comparisons, 'comparison')} on {_count(verdict.seeds, 'seed')}"
    )
    if verdict.evidence:
        return replace(
            verdict,
            reason=f"This is more than the noise between seeds: {tested}.",
            next_step="Confirm it on fresh seeds: the best of many looks better than it is.",
        )
    reason = (
        f"No evidence of a difference: {tested}; with these seeds only one of "
        f"{verdict.minimum_detectable_effect:.3g} would be found 8 times in 10."
    )
    if verdict.winner == verdict.baseline:
        step = "Keep the baseline, or search elsewhere; more seeds of these configurations decide little."
    elif verdict.confirmation_seeds is None:
        step = f"So small a difference takes more than {MAX_SEEDS} seeds to show; search for a larger one."
    else:
        step = f"Run {verdict.best} and {verdict.baseline} alone on {verdict.confirmation_seeds} fresh seeds"
        if verdict.seeds_needed is not None:
            step += f" (or every configuration on {verdict.seeds_needed})"
        step += " to find a difference of this size 8 times in 10."
    return replace(verdict, reason=reason, next_step=step)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"


def _finite(scores: Scores) -> dict[str, dict[Hashable, float]]:
    return {name: {seed: float(y) for seed, y in row.items() if math.isfinite(y)} for name, row in scores.items()}


def _require(scores: Scores, baseline: str) -> None:
    if not scores.get(baseline):
        raise ValueError(f"the baseline {baseline} has no score: name a configuration that finished")
