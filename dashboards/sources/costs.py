"""Find the columns that measure a run's cost, such as tokens, seconds or samples."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dashboards.sources.column_words import COMPUTE, COUNTERS, DURATIONS, words_of
from dashboards.sources.run_columns import RunColumns

_MOST = 0.5  # a cost must grow in more than this fraction of runs
_COSTS = (*COUNTERS, *DURATIONS, *COMPUTE)
# words in the names of rates, settings and measurements of a single step
_NO_COSTS = ("per", "max", "min", "mean", "avg", "std", "length", "num", "batch", "size", "rate")


def cost_columns(runs: pd.DataFrame, columns: RunColumns) -> list[str]:
    """Return the cost columns: recognized by name, with amounts of at least 0. With several rows
    per run, a cost must also grow within most runs. It need not grow in all, because the counter of
    a restarted run may start again at 0.
    """
    taken = {*columns.point, *columns.task, columns.score, columns.seed}
    found = []
    for column in map(str, runs):
        words = set(words_of(column))
        if column in taken or not words.intersection(_COSTS) or words.intersection(_NO_COSTS):
            continue
        amounts = pd.to_numeric(runs[column], errors="coerce")
        if (
            amounts.notna().any()
            and (amounts.dropna() >= 0).all()
            and _grows(runs, amounts, columns)
        ):
            found.append(column)
    return found


def _grows(runs: pd.DataFrame, amounts: "pd.Series[float]", columns: RunColumns) -> bool:
    """Return whether the amounts grow, and never decrease, in most runs with several rows. True if
    the table has no column that orders the rows of a run.
    """
    if columns.place not in runs:
        return True
    placed = runs.assign(amount=amounts)[[*columns.run, columns.place, "amount"]].dropna()
    placed = placed.sort_values([columns.place, "amount"], kind="stable")
    by_run = placed.groupby(columns.run).amount
    growing = by_run.agg(_is_growing)[by_run.size() > 1]
    return bool(len(growing) and growing.mean() > _MOST)


def _is_growing(amounts: "pd.Series[float]") -> bool:
    return amounts.is_monotonic_increasing and bool(amounts.iloc[-1] > amounts.iloc[0])


def costs_of(
    rows: pd.DataFrame, names: Sequence[str], columns: RunColumns, end: float
) -> dict[str, float]:
    """Return cost column -> amount that a run had used up to the point of comparison. A column
    without amounts, or whose amounts decrease in this run, is left out.

    Args:
        rows: rows of the run.
        names: the cost columns.
        columns: roles of the table's columns.
        end: step or axis value of the comparison; unused with one row per run.
    """
    costs = {}
    for name in names:
        amounts = pd.to_numeric(rows[name], errors="coerce")
        if columns.place not in rows:
            costs[name] = float(amounts.max())
            continue
        placed = pd.DataFrame({"place": rows[columns.place], "amount": amounts}).dropna()
        if placed.empty:
            continue
        by_place = placed.groupby("place").amount.max()
        if not by_place.is_monotonic_increasing:
            continue
        costs[name] = float(np.interp(end, by_place.index.to_numpy(float), by_place.to_numpy()))
    return {name: value for name, value in costs.items() if np.isfinite(value)}
