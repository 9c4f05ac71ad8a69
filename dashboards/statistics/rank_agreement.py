"""Whether the order of a few configurations is the same at two sizes of a task: Kendall's tau, of pairs with weights.

``tau = sum w_ij sign(x_i - x_j) sign(y_i - y_j) / sum w_ij`` over pairs i < j; all weights are 1 [Kendall, Biometrika
30, 1938], or the cube of a parameter's share in the distance of two configurations, so that those decide that differ
in little else. The interval holds those values of tau
under which so large and so small an estimate would each be seen in 5 % or more, for normal scores with correlation
``sin(tau pi / 2)``: a bootstrap of five configurations in the same order would call that certain.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dashboards.statistics.estimates import LEVEL
from dashboards.statistics.seed_noise import Interval

Array = NDArray[np.float64]
_DRAWS = 2000
_GRID = np.linspace(-1, 1, 41)  # values of tau


def rank_agreement(here: Sequence[float], there: Sequence[float], weights: Array | None = None) -> Interval:
    """Tau of two scores of the same configurations with its 90 % interval; ``weights`` [n, n] of their pairs."""
    first, second = np.triu_indices(len(here), 1)
    weight = np.ones(len(first)) if weights is None else weights[first, second]

    def tau(x: Array, y: Array) -> Array:
        agree = np.sign(x[..., first] - x[..., second]) * np.sign(y[..., first] - y[..., second])
        return np.asarray((agree * weight).sum(axis=-1) / weight.sum())

    seen = float(tau(np.array(here), np.array(there)))
    x, noise = np.random.default_rng(0).standard_normal((2, _DRAWS, len(here)))
    held = [seen]  # which no value of the grid may be near
    for value in _GRID:
        rho = np.sin(value * np.pi / 2)
        drawn = tau(x, rho * x + np.sqrt(1 - rho**2) * noise)
        if min((drawn >= seen - 1e-9).mean(), (drawn <= seen + 1e-9).mean()) >= (1 - LEVEL) / 2:
            held.append(float(value))
    return Interval(seen, min(held), max(held))


def parameter_weights(points: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """Parameter -> the cube of its share in the distance of each pair of points [n, n], for those that vary.

    Numbers are apart by their ranks, words by 1 if they differ; every parameter's largest distance is 1.
    """
    found = {}
    for key in points[0]:
        values = [point[key] for point in points]
        if all(isinstance(value, int | float) for value in values):
            places = np.array([sorted(set(values)).index(value) for value in values], dtype=float)
            apart = np.abs(np.subtract.outer(places, places))
        else:
            apart = np.array([[float(one != other) for other in values] for one in values])
        if apart.any():
            found[key] = apart / apart.max()
    total = np.maximum(sum(found.values(), np.zeros((len(points), len(points)))), 1e-12)
    return {key: (apart / total) ** 3 for key, apart in found.items()}
