"""How pictures look: colours that hold on white and on black, and quiet axes.

The page sets text and grid colours to its light or dark scheme when it draws, so figures carry none.
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import plotly.graph_objects as go

FAILED = "#d43d4f"
MUTED = "#8b93a1"


@dataclass(frozen=True)
class Picture:
    """One picture of the report: what it asks, what it found in this sweep, and the drawing."""

    key: str
    title: str
    sentence: str
    figures: tuple[go.Figure, ...] = ()
    legend: Mapping[str, str] = field(default_factory=dict)  # name -> colour, shown once for all figures
    min_width: int = 0  # [px] below which the figure scrolls sideways


def figure(x: str = "", y: str = "", *, height: int = 380, legend: bool = True) -> go.Figure:
    """An empty figure with axis titles, the legend below the axes."""
    drawing = go.Figure()
    drawing.update_layout(
        template="none",
        height=height,
        margin={"l": 54, "r": 14, "t": 14, "b": 46},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        hoverlabel={"align": "left"},
        showlegend=legend,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "left", "x": 0},
        xaxis={"title": {"text": x, "standoff": 8}, "zeroline": False, "automargin": True},
        yaxis={"title": {"text": y, "standoff": 8}, "zeroline": False, "automargin": True},
    )
    return drawing


def label_rows(drawing: go.Figure, names: Sequence[str]) -> None:
    """Write each row's name above it inside the plot: beside it, it would take a phone's whole width."""
    drawing.update_layout(margin_l=14)
    drawing.update_yaxes(
        showticklabels=False, categoryorder="array", categoryarray=list(names), range=[-0.6, len(names) - 0.2]
    )
    for name in names:
        drawing.add_annotation(
            xref="paper",
            x=0,
            y=name,
            yshift=17,
            text=html.escape(name),
            showarrow=False,
            xanchor="left",
            font={"size": 12},
        )


def translucent(colour: str, opacity: float) -> str:
    """A hex colour with opacity."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def rows(frame: pd.DataFrame) -> list[Any]:
    """The rows of a frame as named tuples."""
    return list(frame.itertuples())


def hover(row: Any, *more: str) -> str:
    """The text over a point: its trial and setting; escaped, because reasons are free text."""
    lines = [f"trial {row.trial}", f"{row.label}, seed {row.seed}"]
    lines += more
    return "<br>".join(html.escape(line) for line in lines if line)


def number(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, without exponent where it is readable."""
    if value != value:
        return "none"
    if value and (abs(value) >= 10**5 or abs(value) < 10**-4):
        return f"{value:.{digits - 1}e}"
    if value == int(value):
        return str(int(value))
    return f"{value:#.{digits}g}".rstrip(".")


def signed(value: float) -> str:
    """A difference, with its sign."""
    return f"{value:+.3f}"
