"""The verdict: whether a configuration beats the baseline, the detectable improvement, and the
seeds that a confirmation needs.

A search also follows noise that varies smoothly with the parameters. Correcting for the number of
configurations does not remove this bias, so the seeds of a search yield candidates, and only fresh
seeds are evidence.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dashboards.fresh_seeds import MIN_SEEDS
from dashboards.statistics.arms import Plan, compare_as_asked
from dashboards.statistics.blocks import Known
from dashboards.statistics.compared import Comparison
from dashboards.statistics.comparison import rows_without_failure
from dashboards.statistics.difference import Difference, Layout
from dashboards.statistics.layouts import Pairing
from dashboards.statistics.levels import repeats_factor
from dashboards.statistics.power import minimum_detectable_effect, seeds_for
from dashboards.statistics.problems import Answers
from dashboards.statistics.rounding import rounding
from dashboards.statistics.seed_noise import (
    Noise,
    Scores,
    finite_scores,
    noise_around_mean,
    oriented,
)
from dashboards.trial import Mode, sign_of

Why = Literal["alone", "no shared seed", "one seed", "no spread"]
# candidate: significant, but the seeds guided the search; too few seeds: significant, but on fewer
# than ``MIN_SEEDS`` seeds
Claim = Literal["evidence", "candidate", "too few seeds", "none"]

# number of differences needed to estimate their true spread; with fewer, a gain is shrunk toward
# zero
MIN_SPREAD = 3
COLLAPSE_LEVEL = 0.05  # probability of observing no collapse at the excluded rate


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """The best configuration other than the baseline, and the conclusion about it."""

    # difference of the best configuration; of the baseline to itself if there is no other
    found: Difference
    sign: int = 1  # -1 if smaller scores are better
    comparisons: int  # number of configurations compared with the baseline
    failed: Mapping[str, int]  # configuration -> number of its failed seeds
    runs: tuple[int, int] = (0, 0)  # number of runs of the best configuration and of the baseline
    # seeds per configuration that detect a true difference of this size with 80% power; None if
    # that is unknown or more than `fresh_seeds.MOST_SEEDS`
    deciding_seeds: int | None = None

    @property
    def best(self) -> str:
        """The number of the best configuration, or of the baseline if there is no other."""
        return self.found.configuration

    @property
    def baseline(self) -> str:
        """The number of the baseline."""
        return self.found.baseline

    @property
    def is_baseline_alone(self) -> bool:
        """Whether no other configuration can be compared with the baseline."""
        return self.best == self.baseline

    @property
    def difference(self) -> float:
        """The mean difference of the best configuration from the baseline, over shared seeds if
        runs are paired, in units of the score.
        """
        return self.found.measured(self.sign)

    @property
    def seeds(self) -> int:
        """The number of seeds shared by the best configuration and the baseline; if unpaired, the
        smaller number of runs.
        """
        return self.found.seeds

    @property
    def layout(self) -> Layout:
        """The layout of the comparison of the best configuration with the baseline."""
        return self.found.layout

    @property
    def improves(self) -> bool:
        """Whether the difference is in the direction of the objective."""
        return self.found.gain > 0

    @property
    def winner(self) -> str:
        """The number of the best configuration if it is better than the baseline; otherwise the
        baseline's number.
        """
        return self.best if self.improves else self.baseline


@dataclass(frozen=True, kw_only=True)
class Undecided(Conclusion):
    """A verdict without a test, because the seeds are too few or their differences do not vary."""

    why: Why


@dataclass(frozen=True, kw_only=True)
class Tested(Conclusion):
    """A difference with its test."""

    claim: Claim
    sd: float  # standard deviation of one score between seeds
    dof: int  # degrees of freedom of that estimate
    # empirical Bayes estimate of the difference, corrected for selection
    shrunken: float
    # largest gain over the baseline that the interval of any configuration includes; infinite if a
    # configuration has no interval
    largest_gain: float
    detectable: float  # true gain detected with 80% power, assuming equal noise
    # fresh seeds of best and baseline that detect a true gain of `shrunken` with 80% power
    confirmation_seeds: int | None

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the difference, simultaneous over all comparisons."""
        interval = self.found.measured_interval(self.sign)
        assert interval is not None
        return interval

    @property
    def coverage(self) -> float:
        """The coverage of the interval; higher after earlier confirmations."""
        return self.found.coverage

    @property
    def p_value(self) -> float:
        """The one-sided p value, corrected for selecting the best of `comparisons`."""
        assert self.found.p is not None
        return self.found.p

    @property
    def median(self) -> float:
        """The median difference, in units of the score."""
        return self.sign * self.found.median

    @property
    def by_problem(self) -> bool:
        """Whether the interval uses evaluation noise."""
        return self.found.by_problem

    def excludes(self, worthwhile: float) -> bool:
        """Return whether the intervals of all configurations exclude an improvement by
        ``worthwhile``.
        """
        return self.largest_gain < max(worthwhile, 0.0) or self.largest_gain <= 0

    @property
    def driven_by_few_seeds(self) -> bool:
        """Whether the median contradicts the mean: it has a different sign, or differs by a factor
        of two.
        """
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
    earlier: Scores | None = None,
) -> Verdict:
    """Compare the configurations with the baseline and report the best configuration.

    Args:
        scores: configuration -> seed -> score of finished trials; NaN if the trial failed.
        baseline: the configuration to beat.
        mode: whether larger or smaller scores are better.
        adaptive: whether scores on these seeds decided which configurations were tried.
        answers: per-problem accuracies, if the score is an accuracy.
        pairing: see `Plan`.
        earlier: scores of the same configurations on other seeds, used only for the noise estimate.

    Raises:
        ValueError: the baseline has no score.
    """
    sign = sign_of(mode)
    comparison = compare_as_asked(
        oriented(scores, sign),
        baseline,
        Plan(pairing=pairing),
        known=None if earlier is None else Known(oriented(earlier, sign)),
        answers=answers,
    )
    return conclude(comparison, scores, baseline, sign, earlier=earlier, adaptive=adaptive)


def conclude(
    result: Comparison,
    scores: Scores,
    baseline: str,
    sign: int,
    *,
    earlier: Scores | None = None,
    adaptive: bool = False,
    preferred: Collection[str] = (),
) -> Verdict:
    """Return the verdict from a comparison of all configurations. It is about the best significant
    gain, or the best gain if none is significant. Significant gains of ``preferred`` configurations
    take precedence.

    Args:
        result: the comparison.
        scores: configuration -> seed -> score, in units of the score.
        baseline: the configuration to beat, or the label of the number to beat.
        sign: 1 if larger scores are better, -1 if smaller are.
        earlier: scores of a search on other seeds, if these seeds are fresh.
        adaptive: whether scores on these seeds decided which configurations were tried.
        preferred: configurations whose guards hold.
    """
    if not result.differences:
        return _unmatched(scores, baseline, sign, result.failed)
    best = _best(result, preferred)
    noise = _noise_of_best(result, best, scores, baseline)
    power = _power_of(result, noise, scores, baseline, earlier)
    concluded = _conclusion(result, best, scores, baseline, sign, power)
    if best.interval is None or best.p is None:
        why: Literal["one seed", "no spread"] = "one seed" if best.seeds < 2 else "no spread"
        return Undecided(**vars(concluded), why=why)
    gains = {each.configuration: each.certain_gain for each in result.differences}
    seeds = {each.configuration: each.seeds for each in result.differences}
    shrunken = shrunken_difference(gains, seeds, best.configuration, noise.sd)
    return Tested(
        **vars(concluded),
        claim=_claim(best, adaptive=adaptive),
        sd=noise.sd,
        dof=noise.dof,
        shrunken=sign * shrunken,
        largest_gain=max(each.largest_gain for each in result.differences),
        detectable=minimum_detectable_effect(
            power.sd,
            best.seeds,
            len(result.differences) + 1,
            0 if earlier is None else power.known_dof,
            result.repeats,
            blocks=result.blocks,
        ),
        confirmation_seeds=power.seeds_to_detect(shrunken, power.known_dof),
    )


def _noise_of_best(result: Comparison, best: Difference, scores: Scores, baseline: str) -> Noise:
    """Return the noise of the best configuration's scores; of the baseline's alone if no residual
    degrees of freedom are left.
    """
    noise = result.noises.get(best.configuration, result.noise)
    if not noise.dof and baseline in scores:
        return noise._replace(sd=_noise_of(scores, baseline))
    return noise


@dataclass(frozen=True, kw_only=True)
class _Power:
    """The conditions of the next confirmation, which determine its power."""

    sd: float  # noise of a score that gives a difference from the baseline its variance
    known_dof: int  # degrees of freedom that the seeds before the confirmation add
    repeats: float  # factor of its p-value
    blocks: bool  # whether seeds are treated as blocks

    def seeds_to_detect(self, gain: float, known_dof: int = 0) -> int | None:
        """Return the seeds per configuration that detect a true gain; see `seeds_for`."""
        return seeds_for(
            gain, self.sd, known_dof=known_dof, repeats=self.repeats, blocks=self.blocks
        )


def _power_of(
    result: Comparison, noise: Noise, scores: Scores, baseline: str, earlier: Scores | None
) -> _Power:
    """Return the conditions of the next confirmation."""
    # The test on fresh seeds also uses the noise of the search, whose scores these may be, but not
    # of rows with a failed seed.
    known = scores if earlier is None else earlier
    known_seeds = len(rows_without_failure(known).get(baseline, ()))
    return _Power(
        # A number has no noise, so a difference from it has half the variance.
        sd=noise.sd if baseline in scores else noise.sd / math.sqrt(2),
        known_dof=max(0, known_seeds - 1),
        # Repeated confirmations have a stricter level.
        repeats=result.repeats if earlier is None else repeats_factor(1) * result.repeats,
        blocks=result.blocks,
    )


def _conclusion(
    result: Comparison, best: Difference, scores: Scores, baseline: str, sign: int, power: _Power
) -> Conclusion:
    """Return the part of the verdict that needs no test."""
    return Conclusion(
        found=best,
        sign=sign,
        comparisons=len(result.differences),
        failed=result.failed,
        runs=(len(scores[best.configuration]), len(scores.get(baseline, ()))),
        deciding_seeds=power.seeds_to_detect(abs(best.gain)) if power.sd > 0 else None,
    )


def _claim(best: Difference, *, adaptive: bool) -> Claim:
    """Return the strongest claim that the gain supports."""
    if not best.better:
        return "none"
    if adaptive:
        return "candidate"
    return "evidence" if best.seeds >= MIN_SEEDS else "too few seeds"


def _noise_of(scores: Scores, name: str) -> float:
    """Return the standard deviation of one configuration's scores; NaN for a single score."""
    return noise_around_mean(finite_scores(scores)[name].values()).sd


def collapse_bound(seeds: int) -> float:
    """Return the largest collapse rate that ``seeds`` seeds without a collapse do not exclude (95%
    bound).
    """
    return 1 - math.pow(COLLAPSE_LEVEL, 1 / seeds)


def _best(result: Comparison, preferred: Collection[str]) -> Difference:
    """Return the largest significant mean gain, preferred configurations first, or the largest of
    all if none is significant. Ties up to rounding go to the first.
    """
    shown = [each for each in result.differences if each.better]
    guarded = [each for each in shown if each.configuration in preferred]
    differences = guarded or shown or result.differences
    top = max(each.certain_gain for each in differences)
    least = top - rounding([top], *(pair.by_seed.values() for pair in result.paired.values()))
    return next(each for each in differences if each.certain_gain >= least)


def _unmatched(scores: Scores, baseline: str, sign: int, failed: Mapping[str, int]) -> Undecided:
    """Return the verdict if no configuration shares a seed with the baseline."""
    finite = finite_scores(scores)
    means = {}
    for name, row in finite.items():
        if row:
            means[name] = float(np.mean(list(row.values())))
    others = [name for name in means if name != baseline]
    best = max(others, key=lambda name: sign * means[name], default=baseline)
    gain = sign * (means[best] - means[baseline])
    return Undecided(
        found=Difference(configuration=best, baseline=baseline, gain=gain, seeds=0),
        sign=sign,
        comparisons=0,
        failed=failed,
        runs=(len(scores[best]), len(scores[baseline])),
        why="no shared seed" if others else "alone",
    )


def shrunken_difference(
    gains: Mapping[str, float], seeds: Mapping[str, int], best: str, sd: float
) -> float:
    """Return the empirical Bayes estimate of the best difference.

    The best of many scores is biased upward. True effects are modeled as normal around their mean;
    their variance is the variance of the differences minus the noise variance. The baseline's noise
    is common to all differences and cancels in their variance. With fewer than three differences
    that variance cannot be estimated, and the best difference is shrunk toward zero.

    Args:
        gains: configuration -> mean difference from the baseline, larger is better.
        seeds: configuration -> number of seeds of its mean.
        best: the configuration with the best gain.
        sd: standard deviation of one score between seeds.
    """
    means = np.array(list(gains.values()))
    counts = np.array([seeds[name] for name in gains])
    value = gains[best]
    noise = sd**2 / seeds[best]
    if len(means) < MIN_SPREAD:
        return max(0.0, 1 - 2 * noise / value**2) * value if value else 0.0
    effects = max(0.0, float(means.var(ddof=1)) - float(np.mean(sd**2 / counts)))
    center = float(means.mean())
    return center + effects / (effects + noise) * (value - center)
