"""Whether the best configuration of a sweep beats its baseline by more than the noise between seeds.

Dunnett's many-to-one test in a randomised block design with seeds as blocks: the differences of all configurations
to the baseline share one estimate of the noise, that of the additive model of `seed_noise`, so that few seeds of
many configurations suffice. It is one-sided, because only a gain is ever claimed. The p value is the probability
that the largest of all the t reaches that of the best configuration when no configuration differs: it is corrected
for having picked the best. Sign flips of paired differences cannot do this: with 3 seeds their smallest p is 1/8.

Departures, each for an assumption that fails in practice:

- The best configuration may be noisier than the others: where its own differences vary more than the pooled noise,
  their variance is used.
- The baseline may be: the variance of a difference is then at least its own and that of the others, and where an F
  test finds it noisier (or two seeds allow no test), with Welch's degrees of freedom.
- Seeds that failed are the unlucky ones: their configurations make no claim and lend no noise. Configurations that
  kept all their seeds are the lucky ones: what survival can have given them, where it is always the unluckiest
  seeds that fail, is taken off their gain (a trimming bound [Lee, Rev. Econ. Stud. 76, 2009], for normal noise).
  Where more than a quarter failed, that bound is too rough for evidence.
- Seeds may differ by nothing but the few problems they are evaluated on. Where it is known which problems each
  solved, and no more than that is seen, the problems give the noise, with their many degrees of freedom.
- A search follows noise that is smooth in its parameters, which no correction for the number of configurations
  undoes. A search's own seeds give candidates; only fresh seeds give evidence.

`benchmarks/verdict_errors.py` simulates what each of them costs and prevents; docs/statistics.md has the tables.
"""

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy import stats

from dashboards.statistics import dunnett
from dashboards.statistics.dunnett import LEVEL
from dashboards.statistics.guards import Variances, difference_noise, evaluation_alone
from dashboards.statistics.power import MAX_SEEDS, minimum_detectable_effect, seeds_for
from dashboards.statistics.problems import Answers, evaluation_noise
from dashboards.statistics.seed_noise import (
    Noise,
    PairedDifference,
    Scores,
    baseline_noise,
    finite_scores,
    paired_differences,
    require,
    seed_noise,
)

MOST_FAILED = 0.25  # share of failed seeds above which nothing is evidence


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
    candidate: bool  # it would be evidence, had the seeds not steered the search, and fewer failed
    difference: float  # mean over shared seeds of best - baseline, in units of the score
    shrunken: float | None  # what is left of it after shrinking the best of many towards all of them
    interval: tuple[float, float] | None  # each bound holds with 95 %, simultaneous over all comparisons
    p_value: float | None  # one-sided, corrected for having picked the best of `comparisons`
    comparisons: int  # configurations compared with the baseline
    silent: tuple[str, ...]  # configurations that make no claim, because a seed of theirs failed
    failing: bool  # more than `MOST_FAILED` of the seeds failed
    luck: float  # at most what survival gave the others' gain, which the interval and the p value leave out
    seeds: int  # seeds that best and baseline share
    deviation: float | None  # standard deviation of one score between seeds
    freedom: int  # degrees of freedom of that estimate
    by_problem: bool  # the interval rests on the noise of evaluation, beyond which seeds do not differ
    minimum_detectable_effect: float | None  # true gain found 8 times in 10 with these seeds
    seeds_needed: int | None  # seeds per configuration that find the shrunken difference 8 times in 10
    confirmation_seeds: int | None  # fresh seeds of best and baseline alone that do, with this noise known
    finding: str
    reason: str
    next_step: str


def verdict(
    scores: Scores,
    baseline: str,
    mode: Literal["max", "min"] = "max",
    *,
    known: Noise | None = None,
    adaptive: bool = False,
    answers: Answers | None = None,
) -> Verdict:
    """Compare the best configuration with the baseline on matched seeds.

    Args:
        scores: configuration -> seed -> score of trials that ran to their end; NaN where the trial failed.
        baseline: the configuration to beat.
        mode: whether larger or smaller scores are better.
        known: the noise of the same scores from other trials than these.
        adaptive: whether earlier scores on these seeds decided which configurations were tried.
        answers: where the score is an accuracy, which problems it was made of.

    Raises:
        ValueError: the baseline has no score.
    """
    finite = finite_scores(scores)
    require(finite, baseline)
    sign = 1.0 if mode == "max" else -1.0
    silent = tuple(name for name in scores if name != baseline and len(finite[name]) < len(scores[name]))
    judged = {name: row for name, row in finite.items() if name not in silent}
    paired = paired_differences(judged, baseline)
    repeated = {name: one for name, one in paired.items() if len(one.by_seed) > 1}
    candidates = repeated or paired
    if not candidates:
        return _unmatched(judged, baseline, sign, silent)
    best = max(candidates, key=lambda name: sign * candidates[name].mean.value)
    matched = {
        name: {seed: y for seed, y in judged[name].items() if seed in finite[baseline]}
        for name in [baseline, *candidates]
    }
    noise = seed_noise(matched)
    undecided = _undecided(best, baseline, candidates[best], sign, len(candidates), silent)
    size = max(abs(y) for row in matched.values() for y in row.values())
    # Equal scores on all seeds are coarse scores, not the absence of noise.
    if noise.freedom == 0 or noise.deviation <= 1e-9 * size:
        return undecided

    noise = noise.pooled(known)
    shared = tuple(frozenset(one.by_seed) for one in candidates.values())
    evaluation = evaluation_noise(answers or {}, best, baseline, list(candidates[best].by_seed))
    variances = _variances(candidates[best], noise, baseline_noise(matched, baseline), evaluation)
    share = failed_share(scores, baseline)
    undecided = replace(undecided, failing=share > MOST_FAILED, luck=survival_luck(share) * noise.deviation)
    tested = _tested(undecided, sign, shared, variances, adaptive)
    return _worded(_with_forecast(tested, sign, shrunken_difference(candidates, best, noise.deviation), noise))


def _tested(
    undecided: Verdict, sign: float, shared: tuple[frozenset[Hashable], ...], found: Variances, adaptive: bool
) -> Verdict:
    """The verdict with its interval and p value."""
    deviations, freedoms = difference_noise(found, len(shared))
    error, freedom = float(deviations[0]) / math.sqrt(undecided.seeds), int(freedoms[0])
    luck, half = undecided.luck, dunnett.quantile(shared, freedom) * error
    p_value = dunnett.p_value((sign * undecided.difference - luck) / error, shared, freedom)
    low, high = undecided.difference - half, undecided.difference + half
    return replace(
        undecided,
        evidence=p_value < LEVEL and not adaptive and not undecided.failing,
        candidate=p_value < LEVEL,
        interval=(low - luck, high) if sign > 0 else (low, high + luck),
        p_value=p_value,
        by_problem=bool(evaluation_alone(found)[0]),
    )


def _with_forecast(tested: Verdict, sign: float, shrunken: float, noise: Noise) -> Verdict:
    """The verdict with what these seeds can find, and how many what is left of the difference takes."""
    configurations = tested.comparisons + 1
    return replace(
        tested,
        shrunken=shrunken,
        deviation=noise.deviation,
        freedom=noise.freedom,
        minimum_detectable_effect=minimum_detectable_effect(noise.deviation, tested.seeds, configurations),
        seeds_needed=seeds_for(sign * shrunken, noise.deviation, configurations),
        confirmation_seeds=seeds_for(sign * shrunken, noise.deviation, known_freedom=noise.freedom),
    )


def failed_share(scores: Scores, baseline: str) -> float:
    """Share of failed seeds among the configurations besides the baseline.

    Configurations that failed on every seed are broken, not unlucky; they do not count.
    """
    rows = [list(row.values()) for name, row in scores.items() if name != baseline]
    seeds = [value for row in rows if any(map(math.isfinite, row)) for value in row]
    return sum(not math.isfinite(value) for value in seeds) / len(seeds) if seeds else 0.0


def survival_luck(share: float) -> float:
    """What configurations can gain by having kept all their seeds, in standard deviations between the seeds kept.

    The mean of a normal deviate above its quantile at the share of seeds that failed, over the deviation that is
    left there: as much as if those had all been the unluckiest.
    """
    if not share:
        return 0.0
    kept = stats.truncnorm(stats.norm.ppf(share), math.inf)
    return float(kept.mean() / kept.std())


def shrunken_difference(candidates: Mapping[str, PairedDifference], best: str, deviation: float) -> float:
    """The best difference as empirical Bayes estimates it: the best of many looks better than it is.

    True effects are taken as normal around their mean with the variance that the differences show beyond the
    noise; the baseline's own noise is common to all and cancels in that. With fewer than three differences,
    which have no such variance, the single one is shrunk towards zero.

    Args:
        candidates: the differences of all configurations to the baseline.
        best: the one to shrink.
        deviation: of one score between seeds.
    """
    means = np.array([one.mean.value for one in candidates.values()])
    seeds = np.array([len(one.by_seed) for one in candidates.values()])
    value, noise = candidates[best].mean.value, deviation**2 / len(candidates[best].by_seed)
    if len(means) < 3:
        return value * max(0.0, 1 - 2 * noise / value**2) if value else 0.0
    effects = max(0.0, float(means.var(ddof=1)) - float(np.mean(deviation**2 / seeds)))
    centre = float(means.mean())
    return centre + effects / (effects + noise) * (value - centre)


def _variances(best: PairedDifference, noise: Noise, parts: tuple[Noise, Noise], evaluation: Noise) -> Variances:
    """What is known of the noise of the best difference.

    Args:
        best: its differences.
        noise: of one score, all configurations together.
        parts: noise of the baseline and of all others.
        evaluation: of a difference, the part that evaluation makes.
    """
    base, others = parts
    told = base.freedom > 0 and others.freedom > 0
    return Variances(
        pooled=np.array([noise.deviation**2]),
        freedom=noise.freedom,
        own=np.array([np.var(list(best.by_seed.values()), ddof=1)]),
        base=np.array([base.deviation**2]) if told else None,
        base_freedom=base.freedom,
        others=np.array([others.deviation**2]) if told else None,
        others_freedom=others.freedom,
        evaluation=np.array([evaluation.deviation**2]) if evaluation.freedom else None,
        evaluation_freedom=evaluation.freedom,
        own_freedom=len(best.by_seed) - 1,
    )


def _undecided(
    best: str,
    baseline: str,
    paired: PairedDifference | None,
    sign: float,
    comparisons: int,
    silent: Collection[str],
) -> Verdict:
    difference = paired.mean.value if paired else 0.0
    by_seed: Mapping[Hashable, float] = paired.by_seed if paired else {}
    seeds, improves = len(by_seed), sign * difference > 0
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
        candidate=False,
        difference=difference,
        shrunken=None,
        interval=None,
        p_value=None,
        comparisons=comparisons,
        silent=tuple(silent),
        failing=False,
        luck=0.0,
        seeds=seeds,
        deviation=None,
        freedom=0,
        by_problem=False,
        minimum_detectable_effect=None,
        seeds_needed=None,
        confirmation_seeds=None,
        finding=_finding(best, baseline, difference, improves),
        reason=reason,
        next_step=step,
    )


def _unmatched(scores: Scores, baseline: str, sign: float, silent: Collection[str]) -> Verdict:
    means = {name: float(np.mean(list(row.values()))) for name, row in scores.items() if row}
    others = {name: mean for name, mean in means.items() if name != baseline}
    if others:
        best = max(others, key=lambda name: sign * others[name])
        difference, found = others[best] - means[baseline], _undecided(best, baseline, None, sign, 0, silent)
        improves = sign * difference > 0
        return replace(
            found,
            difference=difference,
            winner=best if improves else baseline,
            finding=_finding(best, baseline, difference, improves),
        )
    alone = _undecided(baseline, baseline, None, sign, 0, silent)
    if silent:
        return replace(
            alone,
            finding=f"Every configuration but the baseline {baseline} lost a seed.",
            reason="What is left of a configuration is its luckier seeds, so none makes a claim.",
            next_step="Find out why trials fail, then run them again.",
        )
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
        f"90 % interval {low:+.3g} to {high:+.3g}, one-sided p = {max(verdict.p_value, 1e-4):.2g}, corrected for "
        f"{_count(verdict.comparisons, 'comparison')} on {_count(verdict.seeds, 'seed')}"
    )
    if verdict.evidence:
        return replace(
            verdict,
            reason=f"This is more than the noise between seeds: {tested}.",
            next_step="Confirm it on fresh seeds: the best of many looks better than it is.",
        )
    if verdict.candidate and verdict.failing:
        return replace(
            verdict,
            reason=f"It stands out ({tested}), but of so many failed seeds the lucky ones are left.",
            next_step="Find out why trials fail, then run it on fresh seeds.",
        )
    if verdict.candidate:
        return replace(
            verdict,
            reason=f"It stands out of the noise between seeds ({tested}), but the search followed these seeds.",
            next_step="Run it on fresh seeds: those of a search give candidates, and only fresh ones evidence.",
        )
    reason = (
        f"No evidence of a gain: {tested}; with these seeds only one of "
        f"{verdict.minimum_detectable_effect:.3g} would be found 8 times in 10."
    )
    if verdict.winner == verdict.baseline:
        step = "Keep the baseline, or search elsewhere; more seeds of these configurations decide little."
    elif not verdict.shrunken:
        step = "After shrinking the best of many nothing is left of it; search for a larger difference."
    elif verdict.confirmation_seeds is None:
        step = (
            f"After shrinking the best of many, {verdict.shrunken:+.3g} is left, which takes more than "
            f"{MAX_SEEDS} seeds to show; search for a larger difference."
        )
    else:
        step = f"Run {verdict.best} and {verdict.baseline} alone on {verdict.confirmation_seeds} fresh seeds"
        if verdict.seeds_needed is not None:
            step += f" (or every configuration on {verdict.seeds_needed})"
        step += (
            f" to find 8 times in 10 what is left of the difference after shrinking the best of many, "
            f"{verdict.shrunken:+.3g}."
        )
    return replace(verdict, reason=reason, next_step=step)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"
