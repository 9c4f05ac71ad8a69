"""The importance of parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

Vector = NDArray[np.float64]

MIN_CONFIGURATIONS = 8  # below this an importance is noise


@dataclass(frozen=True)
class Importance:
    """How much of the score's variance one parameter explains alone."""

    parameter: str
    share: float
    chance: float  # what a parameter without influence exceeds in 5 %


def importances(configurations: pd.DataFrame, parameters: Sequence[str]) -> list[Importance]:
    """Importance of each parameter, largest first; empty below ``MIN_CONFIGURATIONS``.

    The share is the adjusted R^2 of the ranked mean scores on the parameter alone: a parabola in the ranks of
    a number, a mean per value of a word. Unlike a correlation it sees an optimum in the middle; it does not
    see interactions. Adjusting makes it 0 on average for a parameter without influence.
    """
    if len(configurations) < MIN_CONFIGURATIONS:
        return []
    scores = stats.rankdata(configurations["mean"].to_numpy(float))
    total = float(scores.var(ddof=1))
    found = []
    for name in parameters:
        column = configurations[name]
        if column.isna().any() or column.nunique() < 2 or total == 0:
            continue
        design = _design(column)
        fitted, _, rank, _ = np.linalg.lstsq(design, scores, rcond=None)
        left, used = len(scores) - int(rank), int(rank) - 1
        if left < 1:
            continue
        share = 1 - float(((scores - design @ fitted) ** 2).sum()) / left / total
        chance = 1 - (left + used) / (left + used * stats.f.isf(0.05, used, left))
        found.append(Importance(name, max(0.0, share), float(chance)))
    return sorted(found, key=lambda one: -one.share)


def _design(column: "pd.Series[Any]") -> Vector:
    if pd.api.types.is_numeric_dtype(column):
        ranks = stats.rankdata(column.to_numpy(float)) / len(column)
        columns = [ranks, ranks**2] if column.nunique() > 2 else [ranks]
    else:
        columns = [(column == value).to_numpy(float) for value in column.unique()[1:]]
    return np.column_stack([np.ones(len(column)), *columns])
