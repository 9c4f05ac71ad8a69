"""Render a report as one HTML file that works offline, on a phone and in print."""

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from dashboards.pictures.questions import TITLE
from dashboards.pictures.theme import Picture
from loptune.parameter_names import shown

Cell = tuple[str, str, str]  # shown text, sort value, CSS class
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?")


def render_page(
    title: str,
    meta: str,
    verdict: Sequence[str],
    chapters: Mapping[str, Sequence[Picture]],
    trials: tuple[Sequence[str], Sequence[Sequence[Cell]]],
    *,
    confirmed: bool = False,
    questions: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the whole page as text.

    Args:
        title: the sweep's name.
        meta: one line about the source of the numbers.
        verdict: sentences: verdict, next step, evidence.
        chapters: title -> figures. The very first figure goes below the headline; empty chapters
            are left out.
        trials: headings and rows of the table at the end.
        confirmed: whether seeds that selected nothing show an improvement.
        questions: questions about the verdict with their answers.
    """
    pictures: list[Picture] = []
    for of_chapter in chapters.values():
        pictures += of_chapter
    first = pictures[0] if pictures else None
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
        questions=questions,
        questions_title=TITLE,
        first=first,
        chapters=_below_headline(chapters, first),
        trials=trials,
        figures=_packed(json.dumps(_figures(pictures), allow_nan=False)),
        plotly=_packed(get_plotlyjs()),
        style=asset("report.css"),
        script=asset("report.js"),
    )


def _below_headline(
    chapters: Mapping[str, Sequence[Picture]], first: Picture | None
) -> dict[str, list[Picture]]:
    """Return the chapters without the figure below the headline. The first chapter is kept even if
    it is empty, because it has the verdict's sentences.
    """
    below: dict[str, list[Picture]] = {}
    for name, pictures in chapters.items():
        others = [picture for picture in pictures if picture is not first]
        if others or not below:
            below[name] = others
    return below


def _figures(pictures: Sequence[Picture]) -> dict[str, Any]:
    """Return the JSON of all figures by the id of their element in the page."""
    figures: dict[str, Any] = {}
    for picture in pictures:
        for index, figure in enumerate(picture.figures):
            figures[f"{picture.key}-{index}"] = json.loads(figure.to_json())
    return figures


def _packed(text: str) -> str:
    """Compress text for the page to unpack: plotly shrinks from 5 MB to 2 MB."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _prose(text: str) -> Markup:
    """Return a sentence as HTML; text between backticks becomes code."""
    text = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    # prevent line breaks inside an option
    return Markup(re.sub(r"--[a-z-]+", r'<span style="white-space: nowrap">\g<0></span>', text))


def cell(value: object, decimals: int | None = None) -> Cell:
    """Return a table cell for text, a number (with ``decimals`` places) or a missing value. A
    finished cell is returned unchanged.
    """
    if isinstance(value, tuple):
        return value
    if isinstance(value, str):
        return value, value, "number" if _NUMBER.fullmatch(value) else ""
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return "", "", "number"
    exact = float(value)  # type: ignore[arg-type]
    return shown(exact) if decimals is None else f"{exact:.{decimals}f}", repr(exact), "number"
