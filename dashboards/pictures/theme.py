"""Common style of the figures: colors that are readable on white and black, plain axes.

The page sets text and grid colors to its light or dark scheme when it renders, so figures contain
none.
"""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

MUTED = "#8b93a1"
# in pixels
_HEIGHT = 380
_BOTTOM_MARGIN = 50  # for tick labels of one line, and the title of the axis
_LINE_HEIGHT = 17  # of a further line of tick labels


@dataclass(frozen=True)
class Picture:
    """One section of the report: title, one-sentence finding, figures and table."""

    key: str
    title: str
    sentence: str
    figures: tuple[go.Figure, ...] = ()
    # headings and rows, below the figures
    table: tuple[Sequence[str], Sequence[Sequence[object]]] = ((), ())
    decides: str = ""  # the decision that the section supports

    @property
    def legend(self) -> dict[str, str]:
        """Trace name -> color, over all figures."""
        colors: dict[str, str] = {}
        for drawing in self.figures:
            for trace in drawing.data:
                if trace.name and trace.showlegend is not False:
                    colors.setdefault(trace.name, _color_of(trace))
        return dict(sorted(colors.items()))


def _color_of(trace: Any) -> str:
    """Return the color of a trace: of its markers, else of their borders, else of its line."""
    for color in (trace.marker.color, trace.marker.line.color):
        if color is not None:
            return str(color)
    return str(trace.line.color)


def figure(x: str = "", y: str = "", *, height: int = _HEIGHT) -> go.Figure:
    """Return an empty figure with axis titles; the y title is above the axis.

    Margins are fixed, because automatic margins and tick labels keep resizing each other.
    """
    drawing = go.Figure()
    drawing.update_layout(
        template="none",
        height=height,
        margin={"l": 58, "r": 28, "t": 40 if y else 14, "b": _BOTTOM_MARGIN, "autoexpand": False},
        title={
            "text": y,
            "font": {"size": 13},
            "x": 0,
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 6, "l": 2},
        },
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        hoverlabel={"align": "left"},
        showlegend=False,
        xaxis={
            "title": {"text": x, "font": {"size": 13}, "standoff": 8},
            "zeroline": False,
            "tickangle": 0,
            "exponentformat": "e",  # 2e-5, where plotly would write 20µ
        },
        yaxis={"zeroline": False, "exponentformat": "e"},
    )
    return drawing


def label_rows(drawing: go.Figure, names: Sequence[str]) -> None:
    """Write each row's name above the row, inside the plot: names on the left of the plot would
    fill the width of a phone.
    """
    drawing.update_layout(margin_l=14)
    drawing.update_yaxes(
        showticklabels=False,
        categoryorder="array",
        categoryarray=list(names),
        range=[-0.6, len(names) - 0.2],
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


def add_points(drawing: go.Figure, x: Any, y: Any, notes: Any, **options: Any) -> None:
    """Add points (or lines, see ``mode``) with hover labels ``notes``."""
    drawing.add_scatter(
        x=x, y=y, hovertext=notes, hoverinfo="text", **{"mode": "markers", **options}
    )


def dots_and_means(
    drawing: go.Figure,
    x: Iterable[float],
    y: Iterable[str],
    shade: str,
    notes: Sequence[str],
    name: str = "",
) -> None:
    """Add a dot per value, and a bar at the mean of each row ``y``."""
    values = pd.Series(list(x))
    rows_of = list(y)
    means = values.groupby(rows_of).mean()
    dots = {"color": shade, "opacity": 0.55, "size": 9}
    bar = {"color": shade, "width": 3}
    add_points(drawing, values, rows_of, notes, name=name, marker=dots)
    drawing.add_scatter(
        x=means,
        y=means.index,
        mode="markers",
        name=f"{name}, mean" if name else "",
        showlegend=False,
        marker={"color": shade, "size": 16, "symbol": "line-ns", "line": bar},
        hoverinfo="skip",
    )


def category_axis(drawing: go.Figure, words: Sequence[str]) -> None:
    """Label the x axis with words, broken after underscores, slashes and hyphens."""
    broken = [
        html.escape(re.sub("([_/-])", r"\1<br>", word)).replace("&lt;br&gt;", "<br>")
        for word in words
    ]
    drawing.update_xaxes(
        type="category",
        categoryarray=list(words),
        range=[-0.7, len(words) - 0.3],
        tickmode="array",
        tickvals=list(words),
        ticktext=broken,
    )
    further_lines = max((text.count("<br>") for text in broken), default=0)
    added = further_lines * _LINE_HEIGHT
    height = drawing.layout.height or _HEIGHT
    drawing.update_layout(margin_b=_BOTTOM_MARGIN + added, height=height + added)


def rows(frame: pd.DataFrame) -> list[Any]:
    """Return the rows of a frame as named tuples."""
    return list(frame.itertuples())


def hover(row: Any, *more: str) -> str:
    """Return the hover text of a point: trial and configuration, escaped because reasons are free
    text.
    """
    lines = [f"trial {row.trial}", f"{row.label}, seed {row.seed}"]
    lines += more
    return "<br>".join(html.escape(line) for line in lines if line)
