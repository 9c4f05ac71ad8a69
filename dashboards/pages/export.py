"""The numbers of a page's pictures as CSV files."""

import csv
import html
import io
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dashboards.pictures.theme import Picture
from trainer.files import write_atomically

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
