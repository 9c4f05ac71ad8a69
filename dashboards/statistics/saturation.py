"""Speed and ceiling of a learning curve."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Vector = NDArray[np.float64]


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
    count = len(values)
    last = float(steps.max())
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
    bound = losses[best] * (1 + stats.f.ppf(0.9, 1, count - 3) / (count - 3))
    likely = losses <= max(bound, 1e-18)
    low, high = ceilings[likely].min(), ceilings[likely].max()
    if likely[-1]:
        low, high = (low, math.inf) if ceilings[-1] > values[0] else (-math.inf, high)
    half = times[best] * last / (last + 2 * times[best])
    return Saturation(float(half), float(ceilings[best]), float(low), float(high))
