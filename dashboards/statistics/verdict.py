"""The verdict: whether a configuration beats the baseline, the detectable improvement, and the
seeds that a confirmation needs.

A search follows noise that is smooth in the parameters. Correcting for the number of configurations
does not undo this, so a search's own seeds give candidates and only fresh seeds give evidence.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dashboards.fresh_seeds import MIN_SEEDS
from dashboards.statistics.arms import Layout, Pairing, compare_arms, compare_with_number
from dashboards.statistics.comparison import compare
from dashboards.statistics.gain import Comparison, GainEstimate
from dashboards.statistics.levels import coverage, repeats_factor
from dashboards.statistics.power import minimum_detectable_effect, seeds_for
from dashboards.statistics.problems import Answers
from dashboards.statistics.seed_noise import Scores, finite_scores, oriented
from dashboards.trial import Mode, sign_of

Why = Literal["alone", "no shared seed", "one seed", "no spread"]
# candidate: would be evidence if the seeds had not guided the search; too few seeds: would be
# evidence on ``MIN_SEEDS`` seeds
Claim = Literal["evidence", "candidate", "too few seeds", "none"]

COLLAPSE_LEVEL = 0.05  # probability of seeing no collapse at the excluded rate


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The best configuration besides the baseline, as it was measured."""

    best: str  # the baseline if there is nothing else
    baseline: str
    difference: float  # mean over shared seeds of best - baseline, in units of the score
    seeds: int  # that best and baseline share; the smaller number of runs if unpaired
    comparisons: int  # configurations compared with the baseline
    improves: bool  # whether the difference is in the direction of the objective
    failed: Mapping[str, int]  # configuration -> its failed seeds
    layout: Layout = "paired"
    runs: tuple[int, int] = (0, 0)  # of the best and of the baseline
    sign: int = 1  # -1 if smaller scores are better
    # seeds per configuration that detect a true difference of this size with 80% power; None if
    # that is unknown or more than `fresh_seeds.MOST_SEEDS`
    deciding_seeds: int | None = None

    @property
    def winner(self) -> str:
        """Best, or the baseline if nothing scored above it."""
        return self.best if self.improves else self.baseline


@dataclass(frozen=True, kw_only=True)
class Undecided(Difference):
    """The seeds cannot decide."""

    why: Why


@dataclass(frozen=True, kw_only=True)
class Tested(Difference):
    """A difference with its test."""

    claim: Claim
    interval: tuple[float, float]  # simultaneous over all comparisons
    coverage: float  # of the interval; 0.9, or more after earlier confirmations
    p_value: float  # one-sided, corrected for selecting the best of `comparisons`
    median: float  # median of the differences by seed
    sd: float  # standard deviation of one score between seeds
    dof: int  # degrees of freedom of that estimate
    # the interval uses evaluation noise, because no variance between seeds is detected beyond it
    by_problem: bool
    # empirical Bayes estimate of the difference, corrected for selection
    shrunken: float
    # the largest gain over the baseline that the intervals of all configurations leave open, larger
    # is better; infinite if one has no interval
    largest_gain: float
    detectable: float  # true gain detected with 80% power, if all noise is alike
    # fresh seeds of best and baseline that detect a true gain of `shrunken` with 80% power
    confirmation_seeds: int | None

    def excludes(self, worthwhile: float) -> bool:
        """Return whether no configuration can improve by a worthwhile amount."""
        return self.largest_gain < max(worthwhile, 0.0) or self.largest_gain <= 0

    @property
    def driven_by_few_seeds(self) -> bool:
        """Whether the median contradicts the mean: by its sign, or by a factor of two."""
        return not 0.5 < self.median / self.difference < 2 if self.difference else False


Verdict = Undecided | Tested


def verdict(
    scores: Scores,
    baseline: str,
    mode: Mode = "max",
    *,
    adaptive: bool = False,
    answers: Answers | None = None,
    pairing: Pairing | None = None,
) -> Verdict:
    """Compare the configurations with the baseline and report the best one.

    The best is chosen among significant gains, or among all if none is significant.

    Args:
        scores: configuration -> seed -> score of trials that ran to their end; NaN where the trial
            failed.
        baseline: the configuration to beat.
        mode: whether larger or smaller scores are better.
        adaptive: whether scores on these seeds decided which configurations were tried.
        answers: per-problem accuracies, if the score is an accuracy.
        pairing: for runs of other programs, whether a seed is a block (`arms`). If None, every
            trial of a seed was planned with the others' and seeds are blocks.

    Raises:
        ValueError: the baseline has no score.
    """
    gains = oriented(scores, sign_of(mode))
    layouts: Mapping[str, Layout] = {}
    if pairing is None:
        result = compare(gains, baseline, answers=answers)
    else:
        result, layouts = compare_arms(gains, baseline, pairing, answers=answers)
    return _concluded(scores, baseline, mode, result, layouts, earlier=None, adaptive=adaptive)


def verdict_on_fresh_seeds(
    scores: Scores,
    baseline: str,
    mode: Mode = "max",
    *,
    earlier: Scores,
    answers: Answers | None = None,
    repeats: float = 1,
) -> Verdict:
    """Compare finalists with the baseline on seeds that chose nothing.

    Args:
        scores: as for `verdict`.
        baseline: the configuration to beat.
        mode: whether larger or smaller scores are better.
        earlier: scores of the same configurations on the search's seeds, which add to the noise
            estimate only.
        answers: per-problem accuracies, if the score is an accuracy.
        repeats: factor of p-values after earlier confirmations (`levels.repeats_factor`).

    Raises:
        ValueError: the baseline has no score.
    """
    sign = sign_of(mode)
    result = compare(
        oriented(scores, sign),
        baseline,
        earlier=oriented(earlier, sign),
        answers=answers,
        repeats=repeats,
    )
    return _concluded(scores, baseline, mode, result, {}, earlier=earlier, adaptive=False)


def verdict_on_number(
    scores: Scores, number: float, name: str, mode: Mode = "max", *, adaptive: bool = False
) -> Verdict:
    """Compare the configurations with a number called ``name``, such as a published record, and
    report the best one.
    """
    sign = sign_of(mode)
    result, layouts = compare_with_number(oriented(scores, sign), sign * number)
    return _concluded(scores, name, mode, result, layouts, earlier=None, adaptive=adaptive)


def _concluded(
    scores: Scores,
    baseline: str,
    mode: Mode,
    result: Comparison,
    layouts: Mapping[str, Layout],
    *,
    earlier: Scores | None,
    adaptive: bool,
) -> Verdict:
    """Return the verdict that a comparison of all configurations gives."""
    sign = sign_of(mode)
    if not result.estimates:
        return _unmatched(scores, baseline, sign, result.failed)
    best = _best(result)
    noise = result.noises.get(best.name, result.noise)
    sd = noise.sd
    if not noise.dof and baseline in scores:
        sd = _noise_of(scores, baseline)
    # A number has no noise of its own, so a difference to it varies half as much.
    noise_of_power = sd if baseline in scores else sd / math.sqrt(2)
    # Seeds are proposed for the confirmation that follows, and a second one has a stricter level.
    following = result.repeats if earlier is None else repeats_factor(1) * result.repeats
    measured = Difference(
        best=best.name,
        baseline=baseline,
        difference=sign * best.gain,
        seeds=best.seeds,
        comparisons=len(result.estimates),
        improves=best.gain > 0,
        failed=result.failed,
        layout=layouts.get(best.name, "paired"),
        runs=(len(scores[best.name]), len(scores.get(baseline, ()))),
        sign=int(sign),
        deciding_seeds=seeds_for(abs(best.gain), noise_of_power, repeats=following)
        if sd > 0
        else None,
    )
    if best.interval is None or best.p_value is None:
        why: Literal["one seed", "no spread"] = "one seed" if best.seeds < 2 else "no spread"
        return Undecided(**vars(measured), why=why)
    gains = {estimate.name: estimate.certain_gain for estimate in result.estimates}
    seeds = {estimate.name: estimate.seeds for estimate in result.estimates}
    shrunken = shrunken_difference(gains, seeds, best.name, sd)
    # The test on fresh seeds also uses the search's seeds; these scores may be the search's own.
    dof = max(0, len((earlier or scores).get(baseline, ())) - 1)
    detectable = minimum_detectable_effect(
        noise_of_power,
        best.seeds,
        len(result.estimates) + 1,
        0 if earlier is None else dof,
        result.repeats,
    )
    low, high = sorted(sign * bound for bound in best.interval)
    return Tested(
        **vars(measured),
        claim=_claim(best, adaptive=adaptive),
        interval=(low, high),
        coverage=coverage(result.repeats),
        p_value=best.p_value,
        median=sign * best.median,
        sd=sd,
        dof=noise.dof,
        by_problem=best.by_problem,
        shrunken=sign * shrunken,
        largest_gain=max(estimate.largest_gain for estimate in result.estimates),
        detectable=detectable,
        confirmation_seeds=seeds_for(shrunken, noise_of_power, known_dof=dof, repeats=following),
    )


def _claim(best: GainEstimate, *, adaptive: bool) -> Claim:
    """Return the strongest claim that a gain on these seeds supports."""
    if not best.better:
        return "none"
    if adaptive:
        return "candidate"
    return "evidence" if best.seeds >= MIN_SEEDS else "too few seeds"


def _noise_of(scores: Scores, name: str) -> float:
    """Return the standard deviation of one configuration's scores; NaN for a single one."""
    values = list(finite_scores(scores)[name].values())
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def collapse_bound(seeds: int) -> float:
    """Return the largest collapse rate that ``seeds`` seeds without a collapse do not exclude (95%
    bound).
    """
    return 1 - math.pow(COLLAPSE_LEVEL, 1 / seeds)


def _best(result: Comparison) -> GainEstimate:
    """Return the largest mean gain among significant ones, else among all; ties up to rounding go
    to the first.
    """
    shown = [estimate for estimate in result.estimates if estimate.better]
    estimates = shown or result.estimates
    top = max(estimate.certain_gain for estimate in estimates)
    gains: list[float] = []
    for pair in result.paired.values():
        gains += pair.by_seed.values()
    spread = max(map(abs, gains), default=abs(top))
    return next(estimate for estimate in estimates if estimate.certain_gain >= top - 1e-9 * spread)


def _unmatched(scores: Scores, baseline: str, sign: float, failed: Mapping[str, int]) -> Undecided:
    """Return the verdict if no configuration shares a seed with the baseline."""
    finite = finite_scores(scores)
    means = {}
    for name, row in finite.items():
        if row:
            means[name] = float(np.mean(list(row.values())))
    others = [name for name in means if name != baseline]
    best = max(others, key=lambda name: sign * means[name], default=baseline)
    difference = means[best] - means[baseline]
    return Undecided(
        best=best,
        baseline=baseline,
        difference=difference,
        seeds=0,
        comparisons=0,
        improves=sign * difference > 0,
        failed=failed,
        sign=int(sign),
        runs=(len(scores[best]), len(scores[baseline])),
        why="no shared seed" if others else "alone",
    )


def shrunken_difference(
    gains: Mapping[str, float], seeds: Mapping[str, int], best: str, sd: float
) -> float:
    """Return the best difference as empirical Bayes estimates it.

    The best of many is biased upward. True effects are modeled as normal around their mean; their
    variance is the variance of the differences minus the noise variance. The baseline's noise is
    common to all differences and cancels there. With fewer than three differences that variance
    cannot be estimated, and the best one is shrunk toward zero.

    Args:
        gains: configuration -> mean difference to the baseline, larger is better.
        seeds: configuration -> seeds of that mean.
        best: the configuration with the best gain.
        sd: standard deviation of one score between seeds.
    """
    means = np.array(list(gains.values()))
    counts = np.array([seeds[name] for name in gains])
    value = gains[best]
    noise = sd**2 / seeds[best]
    if len(means) < 3:
        return max(0.0, 1 - 2 * noise / value**2) * value if value else 0.0
    effects = max(0.0, float(means.var(ddof=1)) - float(np.mean(sd**2 / counts)))
    center = float(means.mean())
    return center + effects / (effects + noise) * (value - center)
