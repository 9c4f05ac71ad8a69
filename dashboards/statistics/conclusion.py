"""A verdict: its numbers, and the sentences that quote them."""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from dashboards.statistics.power import MAX_SEEDS
from dashboards.statistics.seed_noise import Scores

MOST_FAILED = 0.25  # share of failed seeds above which nothing is evidence


@dataclass(frozen=True)
class Verdict:
    """The test of whether the best configuration beats the baseline by more than the noise between seeds.

    Where seeds cannot tell (one seed, no shared seeds, no spread at all), the numbers that need an estimate of
    the noise are None and ``evidence`` is False. ``finding``, ``reason`` and ``next_step`` are one sentence each.
    """

    best: str  # the best configuration besides the baseline
    baseline: str
    winner: str  # best, or the baseline where nothing scored above it
    difference: float  # mean over shared seeds of best - baseline, in units of the score
    comparisons: int  # configurations compared with the baseline
    silent: tuple[str, ...]  # configurations that make no claim, because a seed of theirs failed
    seeds: int  # seeds that best and baseline share
    finding: str
    reason: str
    next_step: str
    evidence: bool = False
    candidate: bool = False  # it would be evidence, had the seeds not steered the search
    shrunken: float | None = None  # what is left of it after shrinking the best of many towards all of them
    interval: tuple[float, float] | None = None  # each bound holds with 95 %, simultaneous over all comparisons
    p_value: float | None = None  # one-sided, corrected for having picked the best of `comparisons`
    failing: bool = False  # more than `MOST_FAILED` of the seeds failed, and there is no interval
    luck: float = 0.0  # at most what survival gave the others' gain, which the interval and the p value leave out
    deviation: float | None = None  # standard deviation of one score between seeds
    freedom: int = 0  # degrees of freedom of that estimate
    by_problem: bool = False  # the interval rests on the noise of evaluation, beyond which seeds do not differ
    minimum_detectable_effect: float | None = None  # true gain found 8 times in 10, if all noise is alike
    unlike: str = ""  # what speaks against that, in words; empty where nothing does
    seeds_needed: int | None = None  # seeds per configuration that find a true gain of `shrunken` 8 times in 10
    confirmation_seeds: int | None = None  # fresh seeds of best and baseline alone that do
    confirmation_chance: float | None = None  # that they find a gain, over all true gains that these scores allow


def undecided(
    best: str, baseline: str, difference: float, seeds: int, sign: float, comparisons: int, silent: Collection[str]
) -> Verdict:
    """The verdict where the seeds that best and baseline share cannot tell; ``sign`` -1 prefers less."""
    improves = sign * difference > 0
    if seeds < 2:
        reason = f"With {_count(seeds, 'seed')} in common, the difference cannot be told from chance."
        step = "Run the baseline and the best configurations on at least 3 seeds each."
    else:
        reason = f"The scores do not vary over {seeds} seeds: they are too coarse to tell noise from effect."
        step = "Evaluate on more problems, or run more seeds."
    return Verdict(
        best=best,
        baseline=baseline,
        winner=best if improves else baseline,
        difference=difference,
        comparisons=comparisons,
        silent=tuple(silent),
        seeds=seeds,
        finding=_finding(best, baseline, difference, improves),
        reason=reason,
        next_step=step,
    )


def unmatched(scores: Scores, baseline: str, sign: float, silent: Collection[str]) -> Verdict:
    """The verdict where no configuration shares a seed with the baseline; arguments as in `undecided`."""
    means = {name: float(np.mean(list(row.values()))) for name, row in scores.items() if row}
    others = {name: mean for name, mean in means.items() if name != baseline}
    if others:
        best = max(others, key=lambda name: sign * others[name])
        return undecided(best, baseline, others[best] - means[baseline], 0, sign, 0, silent)
    alone = undecided(baseline, baseline, 0.0, 0, sign, 0, silent)
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
    return f"No configuration scored better than the baseline {baseline}; the nearest is {best} ({difference:+.3g})."


def worded(verdict: Verdict) -> Verdict:
    """The verdict with a reason and a next step that quote its numbers."""
    if verdict.interval is None or verdict.p_value is None:
        return replace(
            verdict,
            reason=f"More than {MOST_FAILED:.0%} of the seeds failed: what is left is their luck as well.",
            next_step="Find out why trials fail, then run it on fresh seeds.",
        )
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
    if verdict.candidate:
        return replace(
            verdict,
            reason=f"It stands out of the noise between seeds ({tested}), but the search followed these seeds.",
            next_step="Run it on fresh seeds: those of a search give candidates, and only fresh ones evidence.",
        )
    reason = (
        f"No evidence of a gain: {tested}; with {_count(verdict.seeds, 'seed')}, a gain of "
        f"{verdict.minimum_detectable_effect:.3g} would be detected with 80 % power"
    )
    reason += f", less because {verdict.unlike}." if verdict.unlike else "."
    return replace(verdict, reason=reason, next_step=_step_without_evidence(verdict))


def _step_without_evidence(verdict: Verdict) -> str:
    if verdict.winner == verdict.baseline:
        return "Keep the baseline, or search elsewhere."
    if not verdict.shrunken:
        return "After correcting for picking the best no gain is left; search for a larger difference."
    if verdict.confirmation_seeds is None or verdict.confirmation_chance is None:
        return (
            f"The likely true gain, {verdict.shrunken:+.3g}, after correcting for picking the best, takes more "
            f"than {MAX_SEEDS} seeds to show; search for a larger difference."
        )
    step = f"Run {verdict.best} and {verdict.baseline} alone on {verdict.confirmation_seeds} fresh seeds"
    if verdict.seeds_needed is not None:
        step += f" (or every configuration on {verdict.seeds_needed})"
    return (
        f"{step}: they detect the likely true gain, {verdict.shrunken:+.3g}, after correcting for picking the "
        f"best, with 80 % power, and {verdict.confirmation_chance:.0%} averaged over what these scores allow."
    )


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"
