"""Forecast of a trial's score at its end, from its evaluations so far and the other trials of the sweep.

Evaluations ``y`` of trial ``i`` of configuration ``c`` at share ``t`` of the run, 0 < t <= 1, are a Gaussian process:

    y_i(t) = R0 + G h(t) + u(t)  +  a_c h(t)  +  w_i(t) + e_it        h(t) = (1 + C) t / (t + C)

``h`` is the saturating curve of arXiv:2510.13786 (equation 1 with exponent B = 1), 1 at the end of the run. ``R0``,
``G`` and the Brownian motion ``u`` are common to all trials, ``a_c`` is how far the configuration ends above them, the
Brownian motion ``w_i`` lets a trial leave its curve (collapse, a late start), ``e`` is the noise of one evaluation.
Their standard deviations and the time ``C`` of half the gain are fitted to all trials of the sweep by maximum a
posteriori; log-normal priors are as wide as a factor of e.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.stats import f as fisher
from scipy.stats import t as student

Vector = NDArray[np.float64]
Scales = tuple[float, float, float, float]  # of a, w and e, in standard deviations of all evaluations; C

_FITTED = 240  # evaluations that the scales are fitted to: those of the newest trials
_VAGUE = 10.0  # standard deviation of R0 and G, in standard deviations of all evaluations
_JITTER = 1e-9
# Medians of the scales, the first three in standard deviations of the newest evaluations.
_PRIOR = (1.0, 0.3, 0.3, 0.3)


@dataclass(frozen=True)
class Curve:
    """Evaluations of one trial so far, of the ``evaluations`` that it has at its end; NaN where none is known."""

    configuration: int  # trials of one configuration differ by their seed
    values: tuple[float, ...]  # e.g. (0.31, 0.35, 0.42)


@dataclass(frozen=True, eq=False)
class Forecast:
    """Joint predictive distribution of the final scores of trials."""

    mean: Vector  # [N]
    covariance: Vector  # [N, N]
    degrees: int  # of freedom of Student's t, as the scales come from few trials
    scales: Scales

    @classmethod
    def of(cls, curves: Sequence[Curve], evaluations: int, window: int, scales: Scales | None = None) -> Self:
        """The forecast for all trials. A final score is the mean of the last ``window`` of all ``evaluations``.

        ``scales`` of an earlier forecast of the sweep are used as they are, and fitted where there are none.
        """
        trial, place, values = _observed(curves)
        centre, spread = values.mean(), max(float(np.std(values)), 1e-9)
        values = (values - centre) / spread
        configuration = np.array([curve.configuration for curve in curves])
        if scales is None:
            newest = slice(-_FITTED, None)
            scales = _fit(trial[newest], configuration, place[newest], evaluations, values[newest])
        ends = np.repeat(np.arange(len(curves)), window)
        end_places = np.tile(np.arange(evaluations - window, evaluations), len(curves))
        rows, places = np.concatenate([trial, ends]), np.concatenate([place, end_places])
        whole = _covariance(rows, configuration[rows], places, evaluations, scales)
        count = len(values)
        # An evaluation that is known is known: its noise is the same in both blocks.
        factor = cho_factor(whole[:count, :count] + _JITTER * np.eye(count), lower=True)
        across = whole[count:, :count]
        mean = centre + spread * (across @ cho_solve(factor, values))
        covariance = whole[count:, count:] - across @ cho_solve(factor, across.T)
        average = np.kron(np.eye(len(curves)), np.full((1, window), 1 / window))  # [N, N * window]
        return cls(average @ mean, spread**2 * (average @ covariance @ average.T), max(2, len(curves) - 2), scales)

    def interval(self, trial: int, level: float) -> tuple[float, float]:
        """Central predictive interval of a trial's final score, e.g. of level 0.8."""
        half = float(student.ppf((1 + level) / 2, self.degrees)) * math.sqrt(max(0.0, self.covariance[trial, trial]))
        return float(self.mean[trial] - half), float(self.mean[trial] + half)

    def overtakes(self, trial: int, leader: int) -> float:
        """Probability that ``trial`` ends above ``leader``."""
        ahead = self.mean[leader] - self.mean[trial]
        variance = self.covariance[[trial, leader], [trial, leader]].sum() - 2 * self.covariance[trial, leader]
        return float(student.sf(ahead / math.sqrt(max(variance, 1e-18)), self.degrees))


def _observed(curves: Sequence[Curve]) -> tuple[NDArray[np.intp], NDArray[np.intp], Vector]:
    known = [
        (trial, place, value)
        for trial, curve in enumerate(curves)
        for place, value in enumerate(curve.values)
        if math.isfinite(value)
    ]
    trials, places, values = zip(*known, strict=True)
    return np.array(trials), np.array(places), np.array(values)


def _covariance(
    trial: NDArray[np.intp], configuration: NDArray[np.intp], place: NDArray[np.intp], evaluations: int, scales: Scales
) -> Vector:
    """Covariance of evaluations ``place`` (from 0) of trials, the sum of the terms of the module's equation."""
    level, wander, noise, half = scales
    share = (place + 1) / evaluations
    learned = (1 + half) * share / (share + half)
    both = np.outer(learned, learned)
    earlier = np.minimum.outer(share, share)
    same_trial = np.equal.outer(trial, trial)
    same_place = np.equal.outer(place, place)
    common = _VAGUE**2 * (1 + both) + level**2 * earlier
    own = level**2 * both * np.equal.outer(configuration, configuration)
    return np.asarray(common + own + same_trial * (wander**2 * earlier + noise**2 * same_place))


def _fit(
    trial: NDArray[np.intp], configuration: NDArray[np.intp], place: NDArray[np.intp], evaluations: int, values: Vector
) -> Scales:
    medians = np.log(np.array(_PRIOR))

    def loss(logs: Vector) -> float:
        level, wander, noise, half = np.exp(logs).tolist()
        covariance = _covariance(trial, configuration[trial], place, evaluations, (level, wander, noise, half))
        factor = cho_factor(covariance + _JITTER * np.eye(len(values)), lower=True)
        fit = 0.5 * values @ cho_solve(factor, values) + np.log(np.diag(factor[0])).sum()
        return float(fit + 0.5 * ((logs - medians) ** 2).sum())

    found = minimize(loss, medians, method="Nelder-Mead", options={"maxfev": 120, "xatol": 0.05, "fatol": 0.05})
    level, wander, noise, half = np.exp(found.x).tolist()
    return level, wander, noise, half


@dataclass(frozen=True)
class Saturation:
    """Where a learning curve goes and how fast: two things that a comparison at one step mixes."""

    half: float  # step by which half of the gain that the run shows is made
    ceiling: float  # what the curve approaches
    low: float  # 90 % profile interval of the ceiling; infinite where the curve has no end in sight
    high: float


def saturation(steps: Vector, values: Vector) -> Saturation | None:
    """Fit ``y = R0 + (A - R0) t / (t + C)`` (arXiv:2510.13786, equation 1 with B = 1) by least squares.

    ``R0`` and ``A`` are linear given ``C``, which is profiled over 0.01 to 10 lengths of the run.
    Returns None below five values.
    """
    count, last = len(values), float(steps.max())
    if count < 5:
        return None
    times = last * np.geomspace(0.01, 10.0, 200)
    ceilings, losses = np.empty(len(times)), np.empty(len(times))
    for place, time in enumerate(times):
        design = np.stack([np.ones(count), steps / (steps + time)], axis=1)
        solution = np.linalg.lstsq(design, values, rcond=None)[0]
        ceilings[place] = solution.sum()
        losses[place] = ((values - design @ solution) ** 2).sum()
    best = int(losses.argmin())
    bound = losses[best] * (1 + fisher.ppf(0.9, 1, count - 3) / (count - 3))
    likely = losses <= max(bound, 1e-18)
    low, high = ceilings[likely].min(), ceilings[likely].max()
    if likely[-1]:
        low, high = (low, math.inf) if ceilings[-1] > values[0] else (-math.inf, high)
    half = times[best] * last / (last + 2 * times[best])
    return Saturation(float(half), float(ceilings[best]), float(low), float(high))
