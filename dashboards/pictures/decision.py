"""The pictures of a decision in rounds: the gain of every finalist after each look, and its test."""

import html
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dashboards.labels import PALETTE, colours
from dashboards.pictures.theme import FAILED, MUTED, Picture, figure, number, rows, signed
from dashboards.queries import Decision, Sweep

_SAID = {
    "better": "is better than the baseline",
    "not better": "is not better by {}",
    "worse": "is worse than the baseline",
    "failed": "lost a seed, and makes no claim",
    "open": "is not decided",
}
_EFFICACY = PALETTE[2]


def decision(sweep: Sweep) -> Picture:
    """Gains with their bounds, and the test statistic between its boundaries, against fresh seeds."""
    title, found = "Finalists in rounds of fresh seeds", sweep.decision
    if found is None:
        return Picture("decision", title, f"Not run: `sweep decide {sweep.name}` stops as soon as it is known.")
    labels = _labels(found)
    shades = colours(labels.values())
    legend = {labels[name]: shades[labels[name]] for name in _finalists(found)}
    text = (
        f"{decided(found)} First: better where a bar is above 0, not better where it is below the worthwhile "
        f"{found.worthwhile:g}. Second: the gain over its standard error; above the upper boundary a finalist is "
        "better, below the lower one it is given up."
    )
    figures = (_gains(sweep, found, labels, shades), _tests(found, labels, shades))
    return Picture("decision", title, text, figures, legend)


def decided(found: Decision) -> str:
    """What the rounds said about every finalist, and what they cost."""
    labels, fresh = _labels(found), found.fresh
    worthwhile = f"{found.worthwhile:g}"
    said = [
        f"{labels[row.configuration]} {_SAID[row.decision].format(worthwhile)} after {row.seeds} seeds "
        f"({_bounds(row)})"
        for row in rows(found.standings.groupby("configuration", sort=False).tail(1))
    ]
    if not said:
        return f"On fresh seeds nothing is decided yet: the first look is after {found.looks[0]} of each."
    hours = found.device_hours
    spent = f"{number(hours)} {fresh.device}-hours"
    if hours < 1:
        spent = f"{number(60 * hours)} {fresh.device}-minutes"
    return (
        f"On fresh seeds, of at most {found.looks[-1]} planned: {'; '.join(said)}. That took {fresh.ended} trials "
        f"of at most {(len(labels) + 1) * found.looks[-1]}, {spent}."
    )


def _finalists(found: Decision) -> list[str]:
    """The finalists, by their number in the sweep."""
    return list(found.standings.configuration.unique())


def _labels(found: Decision) -> Mapping[str, str]:
    known = {row.configuration: row.label for row in rows(found.fresh.trials)}
    return {name: known.get(name, f"#{name}") for name in _finalists(found)}


def _bounds(row: Any) -> str:
    if math.isnan(row.low):
        return f"gain {signed(row.gain)}"
    return f"gain {signed(row.gain)}, at least {signed(row.low)}, at most {signed(row.high)}"


def _gains(sweep: Sweep, found: Decision, labels: Mapping[str, str], shades: Mapping[str, str]) -> go.Figure:
    """Gain against seeds, from the bound below which it is not to the one above."""
    drawing = figure("fresh seeds of each", f"gain of {sweep.objective.metric}", height=400, legend=False)
    drawing.add_hline(y=0, line={"color": MUTED, "width": 1})
    drawing.add_hline(y=found.worthwhile, line={"color": MUTED, "width": 1, "dash": "dot"})
    for name, label in labels.items():
        own = found.standings[found.standings.configuration == name]
        drawing.add_scatter(
            x=own.seeds,
            y=own.gain,
            mode="lines+markers",
            name=label,
            line={"color": shades[label], "width": 2},
            marker={"size": 9},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": own.high - own.gain,
                "arrayminus": own.gain - own.low,
                "thickness": 1.5,
            },
            hovertext=[html.escape(f"{label}: {_bounds(row)}, {row.decision}") for row in rows(own)],
            hoverinfo="text",
        )
    drawing.update_xaxes(range=[0, found.looks[-1] + 1])
    return drawing


def _tests(found: Decision, labels: Mapping[str, str], shades: Mapping[str, str]) -> go.Figure:
    """The gain over its standard error, between the boundaries of both tests."""
    drawing = figure("fresh seeds of each", "gain / standard error", height=400)
    drawing.update_xaxes(range=[0, found.looks[-1] + 1])
    judged = found.standings[found.standings.low.notna()]
    if judged.empty:
        return drawing
    for name, label in labels.items():
        own = judged[judged.configuration == name]
        t = own.gain / _errors(found, own)
        drawing.add_scatter(
            x=own.seeds,
            y=t,
            mode="lines+markers",
            showlegend=False,
            line={"color": shades[label], "width": 2},
            marker={"size": 9},
            hovertext=[html.escape(f"{label}: t {value:.2f}") for value in t],
            hoverinfo="text",
        )
    for name, bounds, shade in _boundaries(found, judged):
        line = {"color": shade, "width": 2, "dash": "dash"}
        drawing.add_scatter(x=found.looks, y=bounds, mode="lines+markers", name=name, line=line, marker_size=5)
    return drawing


def _errors(found: Decision, own: pd.DataFrame) -> "pd.Series[float]":
    """Standard errors of gains: the distance to the lower bound is the boundary times the error."""
    boundary = dict(zip(found.looks, found.better, strict=True))
    return (own.gain - own.low) / own.seeds.map(boundary)


def _boundaries(found: Decision, judged: pd.DataFrame) -> list[tuple[str, list[float], str]]:
    """Both at every planned look; that of giving up for the noise as the last look estimated it."""
    last = judged.tail(1)
    one_seed = float(_errors(found, last).iloc[0]) * math.sqrt(float(last.seeds.iloc[0]))
    worthwhile = [found.worthwhile * math.sqrt(seeds) / one_seed for seeds in found.looks]
    futile = [shift - t for shift, t in zip(worthwhile, found.futile, strict=True)]
    return [("better above", list(found.better), _EFFICACY), ("given up below", futile, FAILED)]
