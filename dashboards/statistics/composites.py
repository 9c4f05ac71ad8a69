"""One score of several benchmarks: their mean, interquartile mean or weighted mean.

A composite is computed within each run. So benchmarks are never counted as runs, and runs stay
comparable seed by seed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loptune.score import mean


@dataclass(frozen=True)
class Composite:
    """A rule that combines the scores of several benchmarks into one."""

    kind: str = "mean"  # mean, iqm or weights
    # benchmark -> weight, if the kind is weights
    weights: Mapping[str, float] = field(default_factory=dict)

    def of(self, scores: Mapping[str, float]) -> float:
        """Return the composite of benchmark -> score; NaN if a score is NaN."""
        values = list(scores.values())
        if any(math.isnan(value) for value in values):
            return math.nan
        if self.kind == "weights":
            return _weighted_mean(values, [self.weights[name] for name in scores])
        if self.kind == "iqm":
            return interquartile_mean(values)
        return mean(values)

    def label(self, benchmarks: Sequence[str]) -> str:
        """Return the composite in words."""
        names = ", ".join(benchmarks)
        if self.kind == "weights":
            names = ", ".join(f"{self.weights[name]:g} {name}" for name in benchmarks)
            return f"weighted mean of {names}"
        return f"{'interquartile mean' if self.kind == 'iqm' else 'mean'} of {names}"


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half of the values. A value on the edge of that half has a
    fractional weight.

    Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, 2021.
    """
    ordered = sorted(values)
    count = len(ordered)
    weights = []
    for place in range(count):
        inside = min(place + 1, 0.75 * count) - max(place, 0.25 * count)
        weights.append(max(0.0, inside))
    return _weighted_mean(ordered, weights)


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean of the values; values with a weight of 0 are left out."""
    parts = []
    for value, weight in zip(values, weights, strict=True):
        if weight > 0:
            parts.append(weight * value)
    return math.fsum(parts) / math.fsum(weights)
