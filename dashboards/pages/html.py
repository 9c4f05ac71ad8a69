"""The HTML of a report: one file that needs no network, for screen, phone and paper."""

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources

import pandas as pd
from plotly.offline import get_plotlyjs

from dashboards.pictures.theme import Picture
from trainer.config.variants import shown

# Nothing may be fetched: the page must say the same on a machine without network, and tell nobody it was read.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def render_page(
    title: str,
    meta: str,
    verdict: Sequence[str],
    chapters: Mapping[str, Sequence[Picture]],
    table: str,
    *,
    confirmed: bool = False,
) -> str:
    """The whole page as text.

    Args:
        title: the sweep's name.
        meta: one line on where the numbers are from.
        verdict: sentences: the verdict, the next step, and what they rest on.
        chapters: title -> pictures. The first of all stands on the first screen; empty chapters are left out.
        table: the table at the end, already HTML.
        confirmed: whether the verdict is a gain on fresh seeds.
    """
    pictures = [picture for several in chapters.values() for picture in several]
    first, rest = pictures[:1], {name: [*several] for name, several in chapters.items()}
    if first:
        del next(several for several in rest.values() if several)[0]
    rest = {name: several for index, (name, several) in enumerate(rest.items()) if several or not index}
    opening, *below = rest.items()
    figures = {
        f"{picture.key}-{index}": json.loads(figure.to_json())
        for picture in pictures
        for index, figure in enumerate(picture.figures)
    }
    links = [(_anchor(name), name) for name in rest] + [("trials", "All trials")]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}: sweep report</title>",
        f"<style>{_asset('report.css')}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="verdict{" confirmed" if confirmed else ""}">{_prose(verdict[0])}</p>',
        *(_section(picture) for picture in first),
        *(f'<p class="next">{_prose(sentence)}</p>' for sentence in verdict[1:2]),
        f'<p class="meta">{html.escape(meta)}</p><nav>',
        *(f'<a href="#{key}">{html.escape(text)}</a>' for key, text in links),
        f'</nav><h2 id="{_anchor(opening[0])}">{html.escape(opening[0])}</h2>',
        *(f"<p>{_prose(sentence)}</p>" for sentence in verdict[2:]),
        *(_section(picture) for picture in opening[1]),
        *(
            f'<h2 id="{_anchor(name)}">{html.escape(name)}</h2>{"".join(map(_section, several))}'
            for name, several in below
        ),
        '<section id="trials" class="long"><h2>All trials</h2>',
        "<p>A click on a heading sorts.</p>",
        f'<div class="scroll tall">{table}</div></section>',
        _packed("figures", json.dumps(figures, allow_nan=False)),
        _packed("plotly", get_plotlyjs()),
        f"<script>{_asset('report.js')}</script>",
        "</body></html>",
    ]
    return "\n".join(parts)


def _packed(key: str, text: str) -> str:
    """Text that the page unpacks: plotly alone is 5 MB, and 2 MB packed."""
    packed = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    return f'<script type="text/plain" id="{key}">{packed}</script>'


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _prose(text: str) -> str:
    """A sentence as HTML; what stands between backticks is a command."""
    text = re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))
    return re.sub(r"--[a-z-]+", r'<span style="white-space: nowrap">\g<0></span>', text)  # options stay whole


def _asset(name: str) -> str:
    return (resources.files("dashboards.pages") / name).read_text(encoding="utf-8")


def _section(picture: Picture) -> str:
    places = "".join(
        f'<div class="figure" id="{picture.key}-{index}" style="height:{figure.layout.height}px"></div>'
        for index, figure in enumerate(picture.figures)
    )
    names = "".join(
        f'<li><i style="background:{shade}"></i>{html.escape(name)}</li>' for name, shade in picture.legend.items()
    )
    legend = f'<ul class="legend">{names}</ul>' if names else ""
    kind = "figures several" if len(picture.figures) > 1 else "figures"
    long = ' class="long"' if len(picture.figures) > 2 else ""
    headings, rows = picture.table
    decides = f'<p class="decides">Decides {_prose(picture.decides)}.</p>' if picture.decides else ""
    table = render_table(headings, [[cell(value) for value in row] for row in rows]) if headings else ""
    return (
        f'<section id="{picture.key}"{long}><h3>{html.escape(picture.title)}</h3>'
        f'{decides}<p>{_prose(picture.sentence)}</p>{legend}<div class="{kind}">{places}</div>'
        + (f'<div class="scroll">{table}</div>' if table else "")
        + "</section>"
    )


def render_table(headings: Sequence[str], rows: Sequence[Sequence[tuple[str, str, str]]]) -> str:
    """A sortable table of cells (shown text, sort value, CSS class)."""
    head = "".join(
        f'<th scope="col"><button type="button">{html.escape(heading)}</button></th>' for heading in headings
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}" data-value="{html.escape(value, quote=True)}">{html.escape(text)}</td>'
            for text, value, kind in row
        )
        + "</tr>\n"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def cell(value: object, decimals: int | None = None) -> tuple[str, str, str]:
    """A cell of `render_table`: words, or a number with so many decimals; empty where there is none."""
    if isinstance(value, str):
        return value, value, "number" if value.isdigit() else ""
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return "", "", "number"
    exact = float(value)  # type: ignore[arg-type]
    return shown(exact) if decimals is None else f"{exact:.{decimals}f}", repr(exact), "number"
