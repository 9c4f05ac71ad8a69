"""Axes that a few far points do not squeeze: such points are drawn at the edge, and counted there."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from dashboards.pictures.theme import number

_FENCE = 3.0  # interquartile ranges from the quartiles: Tukey's "far out"
_FEWEST = 8  # points that have quartiles to speak of
_ROOM = 0.06  # of the range, left around the points


def at_the_edge(figure: go.Figure, metric: str = "", better: str = "") -> go.Figure:
    """The figure with far points of its axis of values drawn at the edge of the others' range, and counted.

    Those of ``metric`` that lie far on the side that is ``better`` (max or min) stay where they are.
    """
    axis = "y" if all(_numbers(trace.y) is not None for trace in figure.data) else "x"
    traces = [trace for trace in figure.data if trace.type == "scatter"]
    columns = [column for trace in traces if (column := _numbers(trace[axis])) is not None]
    layout = figure.layout[f"{axis}axis"]
    if layout.type == "log" or not len(columns) == len(traces) == len(figure.data) > 0:
        return figure
    values = np.concatenate(columns)
    titles = f"{figure.layout.title.text} {figure.layout.xaxis.title.text}"
    low, high = layout.range or bounds(values, better if metric and metric in titles else "")
    beyond = int((values < low).sum() + (values > high).sum())
    if not beyond:
        return figure
    drawing, edge = go.Figure(figure), low if (values < low).any() else high
    for trace, column in zip(drawing.data, columns, strict=True):
        trace[axis] = np.clip(column, low, high)
    worst = number(float(np.nanmin(values) if edge == low else np.nanmax(values)))
    said = f"{beyond} of {len(values)} points lie beyond, as far as {worst}"
    drawing.update_layout({f"{axis}axis": {"range": [low, high]}})
    place = (
        {"x": 1, "xanchor": "right", "y": edge}
        if axis == "y"
        else {"x": edge, "xanchor": "left" if edge == low else "right", "y": 0}
    )
    refs = {"xref": "paper", "yref": "y"} if axis == "y" else {"xref": "x", "yref": "paper"}
    drawing.add_annotation(text=said, showarrow=False, font={"size": 11}, **place, **refs)
    return drawing


def bounds(values: NDArray[np.float64], better: str = "") -> tuple[float, float]:
    """The range of the values without far ones, if that makes it less than half as wide; else of all.

    On the side that is ``better`` (max or min) none is far.
    """
    known = values[np.isfinite(values)]
    if len(known) < _FEWEST:
        return -np.inf, np.inf
    first, third = np.quantile(known, [0.25, 0.75])
    fence = _FENCE * (third - first)
    above, below = (known >= first - fence) | (better == "min"), (known <= third + fence) | (better == "max")
    kept = known[above & below]
    if not fence or 2 * np.ptp(kept) > np.ptp(known):
        return -np.inf, np.inf
    room = _ROOM * float(np.ptp(kept))
    return float(kept.min()) - room, float(kept.max()) + room


def _numbers(column: Any) -> NDArray[np.float64] | None:
    """A trace's column as floats; None for words."""
    try:
        return np.asarray(column if column is not None else [], dtype=float)
    except (TypeError, ValueError):
        return None
