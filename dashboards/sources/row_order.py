"""Distinguish the evaluations of one run from independent runs by the order of their scores."""

import math

import numpy as np
import pandas as pd
from scipy.stats import norm, rankdata

from dashboards.sources.run_columns import RunColumns
from loptune.errors import ConfigError

_LEVEL = 0.001  # fraction of tables with independent rows that are rejected
_FEWEST_ROWS = 3  # minimum rows of a configuration: two rows have no order to test


def check_order(table: pd.DataFrame, columns: RunColumns) -> None:
    """Reject rows without seeds or run names whose scores follow each other as in a learning curve.

    Successive scores of independent runs differ as much as any two of them. The test is Bartels'
    rank version of von Neumann's ratio (Bartels, JASA 77, 1982), summed over configurations. A
    table whose rows are all sorted by score is not informative and is accepted; a table that is
    sorted by configuration and then by score cannot be distinguished from learning curves.

    Raises:
        ConfigError: independent rows would be in such an order in fewer than 0.1% of tables.
    """
    scores = pd.to_numeric(table[columns.score], errors="coerce")
    scored = scores.notna()
    if scores[scored].is_monotonic_increasing or scores[scored].is_monotonic_decreasing:
        return
    excess = variance = 0.0
    point = [table[column][scored] for column in (*columns.point, *columns.task)]
    for _, of_one in scores[scored].groupby(point, sort=False, dropna=False):
        if of_one.nunique() >= _FEWEST_ROWS:
            excess += 2 - _rank_ratio(of_one.to_numpy())
            variance += _variance_of_ratio(len(of_one))
    if variance and norm.sf(excess / math.sqrt(variance)) < _LEVEL:
        raise ConfigError(
            "neighboring rows of a configuration have similar scores, like evaluations of one run "
            "or rows sorted by score, and there is no step, seed or run column",
            columns.source,
            "add a step, seed or run column; if each row is a run, add --unpaired",
            code="rows-in-order",
        )


def _rank_ratio(scores: np.ndarray) -> float:
    """Return the sum of squared differences of successive ranks, divided by the sum of squared
    deviations of ranks; 2 on average for independent scores.
    """
    ranks = rankdata(scores)
    return float(np.square(np.diff(ranks)).sum() / np.square(ranks - ranks.mean()).sum())


def _variance_of_ratio(rows: int) -> float:
    """Return the variance of `_rank_ratio` for independent scores (Bartels 1982, equation 2.2)."""
    return 4 * (rows - 2) * (5 * rows**2 - 2 * rows - 9) / (5 * rows * (rows + 1) * (rows - 1) ** 2)
