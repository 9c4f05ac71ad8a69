"""Write figures of the studies as PNG files, with kaleido and an installed Chromium or Chrome."""

from pathlib import Path

import plotly.graph_objects as go
from kaleido import write_fig_from_object_sync

# [px] before scaling
WIDTH = 900
SCALE = 2


def write_png(drawing: go.Figure, path: Path) -> None:
    """Write a figure on a white background, and print the path."""
    drawing.update_layout(paper_bgcolor="white", plot_bgcolor="white")
    options = {"format": "png", "width": WIDTH, "height": drawing.layout.height, "scale": SCALE}
    # Do not load MathJax, which would be fetched from the network.
    write_fig_from_object_sync(
        [{"fig": drawing, "path": path, "opts": options}],
        cancel_on_error=True,
        kopts={"mathjax": False},
    )
    print(path)
