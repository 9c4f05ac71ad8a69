"""The HTML of a report: one file that needs no network, for screen, phone and paper."""

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from dashboards.pictures.theme import Picture
from trainer.config.variants import shown

Cell = tuple[str, str, str]  # shown text, sort value, CSS class


def render_page(
    title: str,
    meta: str,
    verdict: Sequence[str],
    chapters: Mapping[str, Sequence[Picture]],
    trials: tuple[Sequence[str], Sequence[Sequence[Cell]]],
    *,
    confirmed: bool = False,
) -> str:
    """Return the whole page as text.

    Args:
        title: the sweep's name.
        meta: one line on where the numbers are from.
        verdict: sentences: the verdict, the next step, and what they rest on.
        chapters: title -> pictures. The first of all stands on the first screen; empty chapters are
            left out.
        trials: headings and rows of the table at the end.
        confirmed: whether the verdict is a gain on fresh seeds.
    """
    pictures = [picture for several in chapters.values() for picture in several]
    first = pictures[0] if pictures else None
    below = {
        name: [picture for picture in several if picture is not first]
        for name, several in chapters.items()
    }
    figures = {
        f"{picture.key}-{index}": json.loads(figure.to_json())
        for picture in pictures
        for index, figure in enumerate(picture.figures)
    }
    loader = PackageLoader("dashboards", "pages")
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    pages.filters |= {"cell": cell, "prose": _prose}

    def asset(name: str) -> Markup:
        return Markup(loader.get_source(pages, name)[0])

    return pages.get_template("report.html").render(
        title=title,
        meta=meta,
        verdict=verdict,
        confirmed=confirmed,
        first=first,
        chapters={
            name: several
            for index, (name, several) in enumerate(below.items())
            if several or not index
        },
        trials=trials,
        figures=_packed(json.dumps(figures, allow_nan=False)),
        plotly=_packed(get_plotlyjs()),
        style=asset("report.css"),
        script=asset("report.js"),
    )


def _packed(text: str) -> str:
    """Return text that the page unpacks: plotly alone is 5 MB, and 2 MB packed."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _prose(text: str) -> Markup:
    """Return a sentence as HTML; what stands between backticks is a command."""
    text = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    # options stay whole
    return Markup(re.sub(r"--[a-z-]+", r'<span style="white-space: nowrap">\g<0></span>', text))


def cell(value: object, decimals: int | None = None) -> Cell:
    """Return a cell of a table: words, or a number with so many decimals; empty where there is
    none; a cell as it is.
    """
    if isinstance(value, tuple):
        return value
    if isinstance(value, str):
        return value, value, "number" if value.isdigit() else ""
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return "", "", "number"
    exact = float(value)  # type: ignore[arg-type]
    return shown(exact) if decimals is None else f"{exact:.{decimals}f}", repr(exact), "number"
