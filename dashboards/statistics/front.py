"""The Pareto front of two objectives. Imports nothing heavy: `sweep status` uses it."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from loptune.score import mean

_Name = TypeVar("_Name", bound=Hashable)
Pair = tuple[float, float]  # values of the first and of the second objective


def front(points: Mapping[_Name, Pair], signs: tuple[int, int]) -> list[_Name]:
    """Return the names that no other name dominates, the best of the first objective first.

    A name dominates another if it is at least as good in both objectives and better in one. Equal
    points do not dominate each other.

    Args:
        points: name -> its two finite values.
        signs: 1 if larger values of an objective are better, -1 if smaller ones are.
    """
    gains = {}
    for name, values in points.items():
        gains[name] = (signs[0] * values[0], signs[1] * values[1])
    ordered = sorted(gains, key=lambda name: gains[name], reverse=True)
    members: list[_Name] = []
    for name in ordered:
        if not any(_dominates(gains[member], gains[name]) for member in members):
            members.append(name)
    return members


def _dominates(one: Pair, other: Pair) -> bool:
    return one != other and one[0] >= other[0] and one[1] >= other[1]


@dataclass(frozen=True)
class Estimate:
    """The mean of an objective over the seeds of a configuration."""

    mean: float
    interval: tuple[float, float] | None  # interval of the mean; None with one seed


def estimate(values: Sequence[float], covers: float) -> Estimate:
    """Return the mean of finite values with its t interval.

    Args:
        values: the values, at least one.
        covers: coverage of the interval.
    """
    middle = mean(values)
    count = len(values)
    if count < 2:
        return Estimate(middle, None)
    from scipy import special  # takes half a second to import

    variance = sum((value - middle) ** 2 for value in values) / (count - 1)
    half = float(special.stdtrit(count - 1, (1 + covers) / 2)) * math.sqrt(variance / count)
    return Estimate(middle, (middle - half, middle + half))
