"""One score of several benchmarks: their mean, interquartile mean or weighted mean.

A composite is taken within a run. So a benchmark never counts as a run, and the runs of a seed stay
comparable seed by seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Composite:
    """How the scores of several benchmarks become one."""

    kind: str = "mean"  # mean, iqm or weights
    weights: Mapping[str, float] = field(
        default_factory=dict
    )  # benchmark -> weight, of ``weights``

    def of(self, scores: Mapping[str, float]) -> float:
        """Return the composite of benchmark -> score; NaN if one of them is."""
        values = list(scores.values())
        if self.kind == "weights":
            weights = [self.weights[name] for name in scores]
            return float(np.average(values, weights=weights))
        if self.kind == "iqm":
            return interquartile_mean(values)
        return float(np.mean(values))

    def label(self, benchmarks: Sequence[str]) -> str:
        """Return the composite in words."""
        names = ", ".join(benchmarks)
        if self.kind == "weights":
            names = ", ".join(f"{self.weights[name]:g} {name}" for name in benchmarks)
            return f"weighted mean of {names}"
        return f"{'interquartile mean' if self.kind == 'iqm' else 'mean'} of {names}"


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half of the values; values at its ends count in part.

    Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, 2021.
    """
    ordered = np.sort(np.asarray(values, float))
    count = len(ordered)
    places = np.arange(count)
    inside = np.minimum(places + 1, 0.75 * count) - np.maximum(places, 0.25 * count)
    return float(np.average(ordered, weights=np.clip(inside, 0, None)))
