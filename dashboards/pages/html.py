"""The HTML of a report: one file that needs no network, for screen, phone and paper."""

import html
import json
import re
from collections.abc import Sequence
from importlib import resources

from plotly.offline import get_plotlyjs

from dashboards.pictures.theme import Picture

# Nothing may be fetched: the page must say the same on a machine without network, and tell nobody it was read.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def render_page(
    title: str,
    meta: str,
    verdict: Sequence[str],
    pictures: Sequence[Picture],
    table: str,
    *,
    table_title: str = "All trials",
    section: tuple[str, str, str] | None = None,
) -> str:
    """The whole page as text.

    Args:
        title: the sweep's name.
        meta: one line on where the numbers are from.
        verdict: sentences, the most important first.
        pictures: in the order of the page.
        table: the trials' table, already HTML.
        table_title: heading of the table.
        section: id, title and HTML of one more section, above the table.
    """
    figures = {
        f"{picture.key}-{index}": json.loads(figure.to_json())
        for picture in pictures
        for index, figure in enumerate(picture.figures)
    }
    # "</script>" inside a string would end the script element.
    data = json.dumps(figures, allow_nan=False).replace("</", "<\\/")
    links = [(picture.key, picture.title) for picture in pictures]
    links += [*([section[:2]] if section else []), ("trials", table_title)]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}: sweep report</title>",
        f"<style>{_asset('report.css')}</style></head><body>",
        f'<h1>{html.escape(title)}</h1><p class="meta">{html.escape(meta)}</p>',
        '<div class="verdict">',
        *(f"<p>{_prose(sentence)}</p>" for sentence in verdict),
        "</div><nav>",
        *(f'<a href="#{key}">{html.escape(text)}</a>' for key, text in links),
        "</nav>",
        *(_section(picture) for picture in pictures),
        section[2] if section else "",
        f'<section id="trials" class="long"><h2>{html.escape(table_title)}</h2>',
        "<p>A click on a heading sorts. The numbers of every picture are beside this page in data/.</p>",
        f'<div class="scroll">{table}</div></section>',
        f'<script type="application/json" id="figures">{data}</script>',
        f"<script>{get_plotlyjs()}</script><script>{_asset('report.js')}</script>",
        "</body></html>",
    ]
    return "\n".join(parts)


def _prose(text: str) -> str:
    """A sentence as HTML; what stands between backticks is a command."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _asset(name: str) -> str:
    return (resources.files("dashboards.pages") / name).read_text(encoding="utf-8")


def _section(picture: Picture) -> str:
    places = "".join(
        f'<div class="figure" id="{picture.key}-{index}" '
        f'style="height:{figure.layout.height}px;min-width:{picture.min_width}px"></div>'
        for index, figure in enumerate(picture.figures)
    )
    names = "".join(
        f'<li><i style="background:{shade}"></i>{html.escape(name)}</li>' for name, shade in picture.legend.items()
    )
    legend = f'<ul class="legend">{names}</ul>' if names else ""
    kind = "figures several" if len(picture.figures) > 1 else "figures"
    kind += " scroll" if picture.min_width else ""
    long = ' class="long"' if len(picture.figures) > 2 else ""
    return (
        f'<section id="{picture.key}"{long}><h2>{html.escape(picture.title)}</h2>'
        f'<p>{_prose(picture.sentence)}</p>{legend}<div class="{kind}">{places}</div></section>'
    )


def render_table(headings: Sequence[str], rows: Sequence[Sequence[tuple[str, str, str]]]) -> str:
    """A sortable table.

    Args:
        headings: column titles.
        rows: cells as (shown text, sort value, CSS class).
    """
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
