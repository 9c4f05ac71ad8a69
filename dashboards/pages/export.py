"""The pictures of a page as files: their numbers as CSV, the drawings as PNG."""

import csv
import html
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from dashboards.pictures.theme import Picture
from trainer.errors import MissingError, StorageError, first_line
from trainer.files import write_atomically

_WIDTH = 900  # [px] of a PNG before scaling
_SCALE = 2
HEADINGS = ("panel", "series", "x", "y", "low", "high", "note")


def write_csvs(pictures: Iterable[Picture], folder: Path) -> list[Path]:
    """Write ``KEY.csv`` for every picture that draws something: one row per point."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for picture in pictures:
        if picture.figures:
            path = folder / f"{picture.key}.csv"
            write_atomically(path, picture_csv(picture))
            paths.append(path)
    return paths


def picture_csv(picture: Picture) -> str:
    """A picture's numbers: panel (axes), series, x, y, low and high (of an interval), note (over the point)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADINGS)
    for figure in picture.figures:
        content = json.loads(figure.to_json())  # typed arrays are decoded by plotly only in the browser
        layout = content["layout"]
        panel = " / ".join(filter(None, (layout["xaxis"]["title"]["text"], layout["title"]["text"])))
        for trace in figure.data:
            writer.writerows((panel, trace.name or "", *row) for row in _points(trace))
    return text.getvalue()


def _points(trace: Any) -> Iterable[tuple[Any, ...]]:
    x, y = _values(trace.x), _values(trace.y)
    count = max(len(x), len(y))
    x, y = (side or [""] * count for side in (x, y))
    low, high = [""] * count, [""] * count
    error = getattr(trace, "error_x", None)
    if error is not None and error.array is not None:
        low = [value - less for value, less in zip(x, _values(error.arrayminus), strict=True)]
        high = [value + more for value, more in zip(x, _values(error.array), strict=True)]
    notes = [trace.hovertext] * count if isinstance(trace.hovertext, str) else list(trace.hovertext or [""] * count)
    for row in zip(x, y, low, high, notes, strict=True):
        note = html.unescape(re.sub(r"<br>", "; ", row[4] or ""))
        yield (*("" if _missing(value) else value for value in row[:4]), note)


def _values(side: Any) -> list[Any]:
    return [] if side is None else [value.item() if hasattr(value, "item") else value for value in side]


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def write_pngs(pictures: Sequence[Picture], folder: Path) -> list[Path]:
    """Draw every figure as ``KEY.png`` (``KEY-2.png`` ... for further panels) with an installed Chrome.

    Raises:
        MissingError: kaleido, or a Chrome or Chromium, is not installed.
        StorageError: it did not draw.
    """
    try:
        from kaleido import write_fig_from_object_sync
        from kaleido.errors import BrowserClosedError, BrowserFailedError, ChromeNotFoundError, KaleidoError
    except ImportError:
        raise MissingError(
            "pictures as PNG need kaleido", "--png", "pip install 'loptune[png]', or use the page's buttons"
        ) from None

    drawings = [
        {
            "fig": _with_legend(figure),
            "path": folder / f"{picture.key}{f'-{number}' if number > 1 else ''}.png",
            "opts": {"format": "png", "width": _WIDTH, "height": figure.layout.height, "scale": _SCALE},
        }
        for picture in pictures
        for number, figure in enumerate(picture.figures, start=1)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # Without MathJax, which would be fetched from the network.
        write_fig_from_object_sync(drawings, cancel_on_error=True, kopts={"mathjax": False})
    except ChromeNotFoundError:
        raise MissingError(
            "pictures as PNG need Chromium or Chrome",
            "PATH",
            "install one or name it in BROWSER_PATH, or use the button over each picture of the page",
        ) from None
    except (BrowserClosedError, BrowserFailedError, KaleidoError, OSError, TimeoutError) as error:
        raise StorageError(
            f"the pictures were not drawn: {first_line(error)}", str(folder), "try again, or use the page's buttons"
        ) from error
    return [drawing["path"] for drawing in drawings]


def _with_legend(figure: go.Figure) -> go.Figure:
    """The figure on white with the legend that the page sets above it."""
    drawing, seen = go.Figure(figure), set()
    for trace in drawing.data:
        trace.showlegend = bool(trace.name) and trace.showlegend is not False and trace.name not in seen
        seen.add(trace.name)
    height = drawing.layout.legend.y or 1
    legend = {"orientation": "h", "y": height, "yanchor": "bottom", "x": 1, "xanchor": "right"}
    drawing.update_layout(paper_bgcolor="white", plot_bgcolor="white", showlegend=True, legend=legend)
    return drawing.update_layout(margin_autoexpand=True)
