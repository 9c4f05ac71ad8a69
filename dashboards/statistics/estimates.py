"""The importance of parameters. Resampling is seeded: the same sweep gives the same page."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from dashboards.statistics.seed_noise import Interval
from trainer.evaluation.estimators import bootstrap_interval

Vector = NDArray[np.float64]

_COVERAGE = 0.9
_RESAMPLES = 250
MIN_CONFIGURATIONS = 8  # below this an importance is noise


@dataclass(frozen=True)
class Importance:
    """How much of the score's variance one parameter explains alone."""

    parameter: str
    share: Interval
    chance: float  # the 95th percentile of the same share when scores are shuffled


def importances(configurations: pd.DataFrame, parameters: Sequence[str]) -> list[Importance]:
    """Importance of each parameter, largest first; empty below ``MIN_CONFIGURATIONS``.

    The share is the adjusted R^2 of the ranked mean scores on the parameter alone: a parabola in the ranks of
    a number, a mean per value of a word. Unlike a correlation it sees an optimum in the middle; it does not
    see interactions. Adjusting makes it 0 on average for a parameter without influence.
    """
    if len(configurations) < MIN_CONFIGURATIONS:
        return []
    scores = stats.rankdata(configurations["mean"].to_numpy(float))
    generator = np.random.default_rng(0)
    found = []
    for name in parameters:
        column = configurations[name]
        if column.isna().any() or column.nunique() < 2:
            continue
        design = _design(column)
        of_drawn = functools.partial(_adjusted_r2, design, scores)
        low, high = bootstrap_interval(len(scores), of_drawn, _COVERAGE, _RESAMPLES)
        shuffled = [_adjusted_r2(design, generator.permutation(scores)) for _ in range(_RESAMPLES)]
        share = max(0.0, _adjusted_r2(design, scores))
        interval = Interval(share, min(share, max(0.0, low)), max(share, high))
        found.append(Importance(name, interval, max(0.0, float(np.quantile(shuffled, 0.95)))))
    return sorted(found, key=lambda one: -one.share.value)


def _design(column: "pd.Series[Any]") -> Vector:
    if pd.api.types.is_numeric_dtype(column):
        ranks = stats.rankdata(column.to_numpy(float)) / len(column)
        columns = [ranks, ranks**2] if column.nunique() > 2 else [ranks]
    else:
        columns = [(column == value).to_numpy(float) for value in column.unique()[1:]]
    return np.column_stack([np.ones(len(column)), *columns])


def _adjusted_r2(design: Vector, scores: Vector, drawn: NDArray[np.int64] | slice = slice(None)) -> float:
    design, scores = design[drawn], scores[drawn]
    total = float(((scores - scores.mean()) ** 2).sum())
    rank = int(np.linalg.matrix_rank(design))
    if total == 0 or len(scores) <= rank:
        return 0.0
    fitted = design @ np.linalg.lstsq(design, scores, rcond=None)[0]
    residual = float(((scores - fitted) ** 2).sum())
    return 1 - (residual / (len(scores) - rank)) / (total / (len(scores) - 1))
