"""One rule in several settings: the mean over settings, and what a new setting may be expected to show.

Random effects: the difference measured in setting i is ``d_i = mean + u_i + e_i`` with ``u_i ~ N(0, tau^2)``, the
settings' true deviations, and ``e_i ~ N(0, s_i^2)``, the noise of its seeds. With ``w_i = 1 / (s_i^2 + tau^2)``,
``mean = sum w_i d_i / sum w_i`` and ``Q(tau^2) = sum w_i (d_i - mean)^2``:

- tau^2 solves Q(tau^2) = k - 1, or is 0 [Paule and Mandel, J. Res. NBS 87, 1982].
- The mean has the variance Q / ((k - 1) sum w_i), at least 1 / sum w_i, and k - 1 degrees of freedom [Hartung and
  Knapp, Stat. Med. 20, 2001; the minimum: Roever et al., BMC Med. Res. Methodol. 15:99, 2015].
- A new setting is drawn with tau^2 from its confidence distribution, Q(tau^2) ~ chi-square [Viechtbauer, Stat. Med.
  26, 2007; Nagashima et al., Stat. Methods Med. Res. 28, 2019]; `benchmarks/evidence_coverage.py` has its coverage.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dashboards.statistics.estimates import LEVEL
from dashboards.statistics.seed_noise import Interval

Vector = NDArray[np.float64]
MIN_SETTINGS = 3  # fewer say nothing of how settings differ


@dataclass(frozen=True)
class Summary:
    """Several settings as a sample of all."""

    mean: Interval
    between: float  # tau, standard deviation of true differences between settings
    prediction: tuple[float, float]  # where the true difference of a new setting lies, 90 %


def random_effects(differences: Sequence[float], errors: Sequence[float], draws: int = 10_000) -> Summary | None:
    """The summary of differences with their standard errors, one a setting; None below three settings."""
    d, s = np.array(differences, dtype=float), np.array(errors, dtype=float)
    if len(d) < MIN_SETTINGS:
        return None
    freedom, generator = len(d) - 1, np.random.default_rng(0)
    between = _solved(d, s, np.array([float(freedom)]))
    mean, error = (float(values[0]) for values in _pooled(d, s, between)[:2])
    half = float(stats.t.ppf((1 + LEVEL) / 2, freedom)) * error
    drawn = _solved(d, s, generator.chisquare(freedom, draws))
    means, deviations, _ = _pooled(d, s, drawn)
    new = means + deviations * generator.standard_t(freedom, draws) + np.sqrt(drawn) * generator.normal(size=draws)
    low, high = np.quantile(new, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Summary(Interval(mean, mean - half, mean + half), math.sqrt(float(between[0])), (float(low), float(high)))


def _pooled(d: Vector, s: Vector, between: Vector) -> tuple[Vector, Vector, Vector]:
    """Mean, its standard error and Q for each tau^2 of ``between``."""
    weights = 1 / (s**2 + between[:, None])
    total = weights.sum(axis=1)
    mean = (weights * d).sum(axis=1) / total
    q = (weights * (d - mean[:, None]) ** 2).sum(axis=1)
    return mean, np.sqrt(np.maximum(1.0, q / (len(d) - 1)) / total), q


def _solved(d: Vector, s: Vector, q: Vector) -> Vector:
    """The tau^2 at which Q has each of the values ``q``; 0 where it is below them already. Q falls with tau^2."""
    low, high = np.zeros_like(q), ((d - d.mean()) ** 2).sum() / q  # Q(t) is at most the sum of squares over t
    for _ in range(40):
        middle = (low + high) / 2
        above = _pooled(d, s, middle)[2] > q
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(_pooled(d, s, np.zeros(1))[2] > q, high, 0.0)
