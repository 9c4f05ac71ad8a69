"""Rules on one grid of a parameter: at one value for all, and each at the peak of its own fitted
parabola.

At one learning rate for all, the rule wins that it happens to suit; the best score of a grid is
also picked for its luck. A parabola through several values uses all of their trials:

    score(x) = a + b log2(x) + c log2(x)^2,   fitted by least squares to the means over seeds,

through the five values around the best mean, and the rule at its best is its largest value there.
Through all values it would be bent by a collapse at high learning rates, and rules that collapse
outside of the grid would look better: up to 99% of comparisons of equal rules then claim a gain, of
the five around the best 1 to 7%, at worst 14%. Where the largest value lies at an end of the five
the rule has no peak, and nothing is said of its best. Noise is told by a jackknife: rules share
seeds, so a seed is left out of all at once, and an interval has one degree of freedom fewer than
seeds. `benchmarks/fitted_peaks.py` measures how often such intervals miss the truth.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dashboards.statistics.dunnett import FALSE_CLAIMS

FITTED_VALUES = 5  # those around the best; a parabola goes through any three
FEWEST_SEEDS = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """Rules that ran the same values of a parameter on the same seeds."""

    parameter: str  # in short
    rules: Sequence[str]  # the first is what the others are held against
    values: Floats  # [values], positive and ascending
    scores: Floats  # [rules, values, seeds]
    sign: int = 1  # -1 where less is better


@dataclass(frozen=True)
class Peak:
    """The largest value of a parabola."""

    score: float
    octave: float  # log2 of the parameter there
    inside: bool  # whether it is the parabola's vertex, not an end of what it was fitted to
    misfit: float  # largest distance of a mean from the parabola
    # of log2 of the parameter; its domain is what it was fitted to
    parabola: np.polynomial.Polynomial


@dataclass(frozen=True)
class Difference:
    """A rule minus the first, in units of the score; the interval holds for all rules together."""

    mean: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class PeakStanding:
    """A rule beside the first one."""

    rule: str
    peak: Peak
    at_best: Difference | None  # each at its own peak; None where one of the two has none
    # both at the value nearest to the first's peak; None for the first itself
    at_same: Difference | None


def fitted_peak(octaves: Floats, means: Floats, sign: int = 1) -> Peak:
    """Fit a parabola to the means at these log2 values; with ``sign`` -1 its smallest value is the
    peak.
    """
    parabola = np.polynomial.Polynomial.fit(octaves, means, 2)
    ends = [float(octaves.min()), float(octaves.max())]
    roots = [float(root) for root in np.real(parabola.deriv().roots())]
    vertices = [root for root in roots if ends[0] < root < ends[1]]
    octave = max([*ends, *vertices], key=lambda place: sign * float(parabola(place)))
    misfit = float(np.abs(parabola(octaves) - means).max())
    return Peak(float(parabola(octave)), octave, octave in vertices, misfit, parabola)


def _peak_around_best(octaves: Floats, means: Floats, sign: int) -> Peak:
    best = int((sign * means).argmax())
    first = int(np.clip(best - FITTED_VALUES // 2, 0, len(means) - FITTED_VALUES))
    fitted = slice(first, first + FITTED_VALUES)
    return fitted_peak(octaves[fitted], means[fitted], sign)


def jackknife(
    whole: float, parts: Sequence[float], outside: float = FALSE_CLAIMS
) -> tuple[float, float]:
    """Return the interval of a value from what it is without each seed; each bound fails with
    ``outside``.
    """
    count = len(parts)
    error = math.sqrt((count - 1) * np.var(parts))
    half = float(special.stdtrit(count - 1, 1 - outside)) * error
    return whole - half, whole + half


def nearest(grid: Grid, peak: Peak) -> int:
    """Return which value of the grid is nearest to a peak."""
    return int(np.abs(np.log2(grid.values) - peak.octave).argmin())


def peak_standings(grid: Grid) -> list[PeakStanding]:
    """Return every rule, the first one first."""
    octaves = np.log2(grid.values)

    def peak(scores: Floats, rule: int) -> Peak:
        return _peak_around_best(octaves, scores[rule].mean(axis=1), grid.sign)

    def difference(of: Callable[[Floats], float]) -> Difference:
        mean = of(grid.scores)
        parts = [of(np.delete(grid.scores, seed, axis=2)) for seed in range(grid.scores.shape[2])]
        return Difference(mean, jackknife(mean, parts, FALSE_CLAIMS / (len(grid.rules) - 1)))

    first = peak(grid.scores, 0)
    shared = nearest(grid, first)

    def standing(rule: int) -> PeakStanding:
        best = peak(grid.scores, rule)
        at_best = None
        if first.inside and best.inside:
            at_best = difference(lambda scores: peak(scores, rule).score - peak(scores, 0).score)
        at_same = difference(
            lambda scores: float((scores[rule, shared] - scores[0, shared]).mean())
        )
        return PeakStanding(grid.rules[rule], best, at_best, at_same)

    others = [standing(rule) for rule in range(1, len(grid.rules))]
    return [PeakStanding(grid.rules[0], first, None, None), *others]
