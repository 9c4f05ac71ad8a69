"""Plot the tables that `examples.paper.diagnose` wrote, as a row of four panels per folder.

    python -m examples.paper.draw_diagnosis FILE.png NAME=FOLDER [NAME=FOLDER ...]

From left to right: the advantages of the tokens of each band of probability (figure 1 (b) of
arXiv:2505.12929); the norm of a log-probability's gradient against 1 - probability (figure 2); how
much the probabilities of each band change if all tokens, only the least or only the most probable
tokens are updated (figure 1 (c) to (f)); and the fraction of the moved tokens that moved in the
direction of their advantage (figure 3).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from dashboards.labels import PALETTE
from examples.paper.diagnose import PUBLISHED_BANDS, RESOLUTION
from research.png import write_png

BANDS = dict(zip(PUBLISHED_BANDS, ("< .25", "< .5", "< .75", "≤ 1"), strict=True))
PANELS = ("advantage", "gradient norm", "mean |change of π|", "right direction")
CHANGE = "change: "


def mean_change(tokens: pd.DataFrame, update: str) -> pd.Series:
    """Return the mean absolute change of probability of each band."""
    return tokens[CHANGE + update].abs().groupby(tokens["band"]).mean().reindex(list(BANDS))


def right_way(tokens: pd.DataFrame, update: str) -> pd.Series:
    """Return for each band the fraction of its moved tokens with an advantage that moved in the
    advantage's direction.
    """
    change = tokens[CHANGE + update]
    counted = (change.abs() > RESOLUTION * tokens["probability"]) & (tokens["advantage"] != 0)
    right = (change > 0) == (tokens["advantage"] > 0)
    return right[counted].groupby(tokens["band"][counted]).mean().reindex(list(BANDS))


def draw(found: dict[str, pd.DataFrame]) -> go.Figure:
    """Return a figure with a row of panels per table of tokens."""
    titles = [f"{name}: {panel}" for name in found for panel in PANELS]
    drawing = make_subplots(rows=len(found), cols=4, subplot_titles=titles, vertical_spacing=0.2)
    for row, tokens in enumerate(found.values(), start=1):
        for band, label in BANDS.items():
            values = tokens["advantage"][tokens["band"] == band]
            box = go.Box(y=values, name=label, marker_color=PALETTE[7], showlegend=False)
            drawing.add_trace(box, row=row, col=1)
        for label, column, color in (
            ("norm by logits", "gradient_norm", PALETTE[0]),
            ("by all parameters", "parameter_gradient_norm", PALETTE[1]),
        ):
            dots = go.Scatter(
                x=1 - tokens["probability"], y=tokens[column], mode="markers", name=label
            )
            dots.update(marker={"size": 4, "color": color, "opacity": 0.6}, showlegend=row == 1)
            drawing.add_trace(dots, row=row, col=2)
        plain, lowest, highest, reweighted, _, isolated = (
            name.removeprefix(CHANGE) for name in tokens if name.startswith(CHANGE)
        )
        for column, measure, updates, colors in (
            (3, mean_change, (plain, lowest, highest), (PALETTE[2], PALETTE[3], PALETTE[4])),
            (4, right_way, (plain, reweighted, isolated), (PALETTE[2], PALETTE[5], PALETTE[6])),
        ):
            for update, color in zip(updates, colors, strict=True):
                bars = go.Bar(x=list(BANDS.values()), y=measure(tokens, update), marker_color=color)
                shown = row == 1 and (column == 3 or update != plain)
                drawing.add_trace(
                    bars.update(name=update.split(",")[0], showlegend=shown), row=row, col=column
                )
        drawing.add_hline(y=0.5, line={"color": "#888", "dash": "dot", "width": 1}, row=row, col=4)
        drawing.update_yaxes(range=[0, 1], tickformat=".0%", row=row, col=4)
    logarithmic = {"type": "log", "dtick": 1, "exponentformat": "power"}
    drawing.update_xaxes(**{**logarithmic, "dtick": 2}, tickangle=0, title="1 − probability", col=2)
    for column in (2, 3):
        drawing.update_yaxes(**logarithmic, col=column)
    drawing.update_layout(
        template="none",
        height=60 + 330 * len(found),
        margin={"l": 50, "r": 14, "t": 90, "b": 46},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.08, "xanchor": "left", "x": 0},
    )
    return drawing


def main(arguments: Sequence[str]) -> int:
    path, *named = arguments
    folders = dict(argument.split("=", 1) for argument in named)
    found = {name: pd.read_csv(Path(folder) / "tokens.csv") for name, folder in folders.items()}
    write_png(draw(found), Path(path))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
