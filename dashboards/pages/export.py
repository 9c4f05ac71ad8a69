"""The pictures of a page as files: their numbers as CSV, the drawings as PNG."""

import base64
import csv
import html
import io
import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from dashboards.pictures.theme import Picture
from trainer.errors import MissingError, StorageError
from trainer.files import write_atomically

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
WIDTH = 900  # [px] of a PNG before scaling
SCALE = 2
PATIENCE_S = 180
HEADINGS = ("panel", "series", "x", "y", "low", "high", "note")

# The white background is the paper's; the page itself is light or dark.
_PAGE = """<!doctype html><meta charset="utf-8"><div id="out"></div>
<script type="application/json" id="figures">{figures}</script><script>{plotly}</script><script>
const figures = JSON.parse(document.getElementById('figures').textContent);
(async () => {{
  const out = document.getElementById('out');
  for (const [name, figure] of Object.entries(figures)) {{
    const layout = {{...figure.layout, paper_bgcolor: '#fff', plot_bgcolor: '#fff'}};
    const options = {{format: 'png', width: {width}, height: layout.height, scale: {scale}}};
    const image = document.createElement('img');
    image.id = name;
    image.src = await Plotly.toImage({{data: figure.data, layout}}, options);
    out.append(image);
  }}
}})();
</script>"""


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
    """The numbers of a picture.

    Columns: panel (axis titles), series, x, y, low and high (ends of an interval or of a bar), note (what the
    page shows over the point).
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADINGS)
    for figure in picture.figures:
        content = json.loads(figure.to_json())  # typed arrays are decoded by plotly only in the browser
        axes = [content["layout"].get(axis, {}).get("title", {}).get("text", "") for axis in ("xaxis", "yaxis")]
        panel = " / ".join(filter(None, axes))
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
    elif getattr(trace, "base", None) is not None:
        low = _values(trace.base)
        high = [start + length for start, length in zip(low, x, strict=True)]
    notes = (
        [trace.hovertext] * count if isinstance(trace.hovertext, str) else list(trace.hovertext or [""] * count)
    )
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
        MissingError: no Chrome or Chromium is on PATH.
        StorageError: it did not draw.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise MissingError(
            "pictures as PNG need Chromium or Chrome", f"PATH (looked for {', '.join(BROWSERS)})", "install one"
        )
    figures = {
        picture.key if index == 0 else f"{picture.key}-{index + 1}": json.loads(figure.to_json())
        for picture in pictures
        for index, figure in enumerate(picture.figures)
    }
    folder.mkdir(parents=True, exist_ok=True)
    images = _drawn(browser, figures)
    if set(images) != set(figures):
        missing = ", ".join(sorted(set(figures) - set(images)))
        raise StorageError(f"{browser} drew no {missing}", str(folder), "try again, or use the page's own buttons")
    paths = []
    for name, content in images.items():
        path = folder / f"{name}.png"
        path.write_bytes(content)
        paths.append(path)
    return paths


def _drawn(browser: str, figures: dict[str, Any]) -> dict[str, bytes]:
    """One start of the browser draws all figures and prints them inside its page."""
    data = json.dumps(figures, allow_nan=False).replace("</", "<\\/")
    page = _PAGE.format(figures=data, plotly=get_plotlyjs(), width=WIDTH, scale=SCALE)
    with tempfile.TemporaryDirectory(prefix="loptune-png-") as scratch:
        source = Path(scratch) / "figures.html"
        source.write_text(page, encoding="utf-8")
        options = [
            "--headless",
            "--disable-gpu",
            "--virtual-time-budget=60000",
            f"--user-data-dir={scratch}/profile",
        ]
        if os.geteuid() == 0:
            options.append("--no-sandbox")  # Chrome refuses to start as root otherwise; the page is our own
        try:
            done = subprocess.run(
                [browser, *options, "--dump-dom", source.as_uri()], capture_output=True, timeout=PATIENCE_S
            )
        except subprocess.TimeoutExpired:
            raise StorageError(f"{browser} did not draw in {PATIENCE_S} s", str(source), "try again") from None
    found = re.findall(rb'<img id="([\w-]+)" src="data:image/png;base64,([^"]+)"', done.stdout)
    return {name.decode(): base64.b64decode(content) for name, content in found}
