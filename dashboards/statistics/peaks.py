"""Compare update rules on a parameter grid: at a common value, and each at the peak of a fitted
parabola.

A common learning rate favors the rules that it happens to suit, and the best score of a grid is
biased upward. A parabola through several values uses all of their trials:

    score(x) = a + b log2(x) + c log2(x)^2,   fitted by least squares to the means over seeds,

over the five values around the best mean. A rule's best is the largest value of the parabola there.
If it were fitted to all values, a collapse at high learning rates would bend the parabola, and
rules that collapse outside the grid would look better. Up to 99% of comparisons of equal rules
would then report a gain. With the five values around the best it is 1 to 7%, at worst 14%. If the
largest value lies at an end of the five, the rule has no peak and is not compared at its best. A
jackknife estimates the noise. Rules share seeds, so each seed is left out of all rules at once, and
an interval has one degree of freedom less than there are seeds. `research/fitted_peaks.py` measures
how often such intervals miss the truth.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dashboards.statistics.levels import SIGNIFICANCE_LEVEL

FITTED_VALUES = 5  # number of values around the best; a parabola fits any three points exactly
MIN_PEAK_SEEDS = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """Scores of rules at the same values of a parameter on the same seeds."""

    parameter: str  # short name of the parameter
    rules: Sequence[str]  # the first is the baseline
    values: Floats  # [values], positive and ascending
    scores: Floats  # [rules, values, seeds]
    sign: int = 1  # -1 if smaller is better


@dataclass(frozen=True)
class Peak:
    """The maximum of a parabola within the fitted range."""

    score: float
    octave: float  # log2 of the parameter at the peak
    inside: bool  # whether it is the parabola's vertex rather than an end of the fitted range
    max_residual: float  # largest residual of the fit
    # polynomial in log2 of the parameter; its domain is the fitted range
    parabola: np.polynomial.Polynomial


@dataclass(frozen=True)
class PeakDifference:
    """Difference of a rule from the first rule, in units of the score; the interval is simultaneous
    over all rules.
    """

    mean: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class PeakResult:
    """A rule compared with the first rule."""

    rule: str
    peak: Peak
    at_best: PeakDifference | None  # each rule at its own peak; None if either has no peak
    # both rules at the value nearest to the first rule's peak; None for the first rule
    at_same: PeakDifference | None


def fitted_peak(octaves: Floats, means: Floats, sign: int = 1) -> Peak:
    """Fit a parabola to the means at these log2 values. The peak is its maximum, or its minimum if
    ``sign`` is -1.
    """
    parabola = np.polynomial.Polynomial.fit(octaves, means, 2)
    ends = [float(octaves.min()), float(octaves.max())]
    roots = [float(root) for root in np.real(parabola.deriv().roots())]
    vertices = [root for root in roots if ends[0] < root < ends[1]]
    octave = max([*ends, *vertices], key=lambda place: sign * float(parabola(place)))
    max_residual = float(np.abs(parabola(octaves) - means).max())
    return Peak(float(parabola(octave)), octave, octave in vertices, max_residual, parabola)


def _peak_around_best(octaves: Floats, means: Floats, sign: int) -> Peak:
    best = int((sign * means).argmax())
    first = int(np.clip(best - FITTED_VALUES // 2, 0, len(means) - FITTED_VALUES))
    fitted = slice(first, first + FITTED_VALUES)
    return fitted_peak(octaves[fitted], means[fitted], sign)


def jackknife(
    estimate: float, parts: Sequence[float], outside: float = SIGNIFICANCE_LEVEL
) -> tuple[float, float]:
    """Return the jackknife interval of an estimate from its leave-one-seed-out values; each bound
    misses with probability ``outside``.
    """
    count = len(parts)
    error = math.sqrt((count - 1) * np.var(parts))
    half = float(special.stdtrit(count - 1, 1 - outside)) * error
    return estimate - half, estimate + half


def nearest(grid: Grid, peak: Peak) -> int:
    """Return the index of the grid value that is nearest to a peak."""
    return int(np.abs(np.log2(grid.values) - peak.octave).argmin())


def compare_peaks(grid: Grid) -> list[PeakResult]:
    """Compare every rule with the first rule; the result starts with the first rule itself."""
    octaves = np.log2(grid.values)

    def peak(scores: Floats, rule: int) -> Peak:
        return _peak_around_best(octaves, scores[rule].mean(axis=1), grid.sign)

    def difference(of: Callable[[Floats], float]) -> PeakDifference:
        mean = of(grid.scores)
        parts = [of(np.delete(grid.scores, seed, axis=2)) for seed in range(grid.scores.shape[2])]
        return PeakDifference(
            mean, jackknife(mean, parts, SIGNIFICANCE_LEVEL / (len(grid.rules) - 1))
        )

    first = peak(grid.scores, 0)
    shared = nearest(grid, first)

    def result(rule: int) -> PeakResult:
        best = peak(grid.scores, rule)
        at_best = None
        if first.inside and best.inside:
            at_best = difference(lambda scores: peak(scores, rule).score - peak(scores, 0).score)
        at_same = difference(
            lambda scores: float((scores[rule, shared] - scores[0, shared]).mean())
        )
        return PeakResult(grid.rules[rule], best, at_best, at_same)

    others = [result(rule) for rule in range(1, len(grid.rules))]
    return [PeakResult(grid.rules[0], first, None, None), *others]
