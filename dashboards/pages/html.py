"""The HTML of a report: one file that needs no network, for screen, phone and paper."""

import html
import json
from collections.abc import Sequence

from dashboards.pictures.theme import Picture

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5b6573; --line: #d9dee6; --page: #ffffff;
  --card: #f6f8fa; --good: #1a7f4b; --bad: #c62b3f; --warn: #946200; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa5b4; --line: #353d49;
  --page: #14181e; --card: #1c222a; --good: #4cc38a; --bad: #ff7b88; --warn: #e3b341; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem 1rem 3rem; max-width: 70rem; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .2rem; }
p { margin: .3rem 0; } .meta, nav { color: var(--soft); font-size: .9rem; } nav a { margin-right: .9rem; }
a { color: inherit; }
.verdict { margin: 1rem 0; padding: .8rem 1rem; background: var(--card); border-left: 4px solid var(--good); }
.verdict p:first-child { font-weight: 600; font-size: 1.08rem; }
.figures { display: grid; gap: .6rem; grid-template-columns: minmax(0, 1fr); }
@media (min-width: 46rem) { .figures.several { grid-template-columns: repeat(2, minmax(0, 1fr)); } }
.figure { min-width: 0; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; list-style: none; margin: .5rem 0 0; padding: 0;
  font-size: .88rem; } .legend i { display: inline-block; width: 1.3rem; height: .22rem; margin-right: .4rem;
  vertical-align: middle; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .55rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td { overflow-wrap: normal; white-space: nowrap; } td.number { text-align: right; }
td.reason { min-width: 14rem; white-space: normal; overflow-wrap: anywhere; }
th button { all: unset; cursor: pointer; font-weight: 600; white-space: nowrap; }
th button:focus-visible { outline: 2px solid currentColor; }
th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
.COMPLETE { color: var(--good); } .FAIL { color: var(--bad); font-weight: 600; } .PRUNED { color: var(--warn); }
@media print { :root { --ink: #000; --soft: #444; --line: #bbb; --page: #fff; --card: #f3f3f3;
    --good: #1a7f4b; --bad: #c62b3f; --warn: #946200; }
  body { max-width: none; font-size: 11pt; padding: 0; } nav { display: none; }
  section { break-inside: avoid; } section.long { break-inside: auto; } tr { break-inside: avoid; }
  .scroll { overflow: visible; } table { font-size: 7pt; } td { white-space: normal; }
  th, td { padding: .15rem .25rem; } td.reason { min-width: 0; } }
"""

SCRIPT = """
const figures = JSON.parse(document.getElementById('figures').textContent);
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function scheme(printing, count) {
  const ink = printing ? '#000' : colour('--ink'), line = printing ? '#ccc' : colour('--line');
  const axis = name => ({[name + '.gridcolor']: line, [name + '.linecolor']: line, [name + '.tickcolor']: line});
  // Labels inside the plot stand on the page's colour, so that lines do not run through them.
  const paper = printing ? '#fff' : colour('--page');
  const labels = Object.fromEntries(Array.from({length: count}, (_, i) => [`annotations[${i}].bgcolor`, paper]));
  return {'font.color': ink, ...labels, ...axis('xaxis'), ...axis('yaxis')};
}
const elements = [...document.querySelectorAll('.figure')];
for (const element of elements) {
  const figure = figures[element.id];
  const narrow = window.innerWidth < 600;
  Plotly.newPlot(element, figure.data, figure.layout,
    {responsive: true, displaylogo: false, displayModeBar: narrow ? false : 'hover'});
}
const repaint = printing => elements.forEach(element => {
  const annotations = figures[element.id].layout.annotations || [];
  Plotly.relayout(element, scheme(printing, annotations.length));
});
repaint(false);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => repaint(false));
// The paper's width is not known here; 660 px fit A4 and Letter.
addEventListener('beforeprint', () => {
  repaint(true);
  elements.forEach(element => Plotly.relayout(element, {width: 660}));
});
addEventListener('afterprint', () => {
  repaint(false);
  elements.forEach(element => Plotly.relayout(element, {width: null, autosize: true}));
});
for (const button of document.querySelectorAll('th button')) button.addEventListener('click', () => {
  const head = button.parentElement, body = head.closest('table').tBodies[0];
  const down = head.getAttribute('aria-sort') === 'ascending';
  for (const other of head.parentElement.children) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const key = row => row.cells[head.cellIndex].dataset.value;
  const compare = (a, b) => {
    const x = key(a), y = key(b);
    if (x === '' || y === '') return (x === '') - (y === '');
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return down ? -order : order;
  };
  body.append(...[...body.rows].sort(compare));
});
"""

# Nothing may be fetched: the page must say the same on a machine without network, and tell nobody it was read.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def render_page(
    title: str,
    meta: str,
    verdict: Sequence[str],
    pictures: Sequence[Picture],
    table: str,
    plotly_js: str,
    *,
    table_title: str = "All trials",
    files_note: str = "The numbers of every picture are beside this page in data/.",
) -> str:
    """The whole page as text.

    Args:
        title: the sweep's name.
        meta: one line on where the numbers are from.
        verdict: sentences, the most important first.
        pictures: in the order of the page.
        table: the trials' table, already HTML.
        plotly_js: the library's source.
        table_title: heading of the table.
        files_note: a sentence on the files that come with the page.
    """
    figures = {
        f"{picture.key}-{index}": json.loads(figure.to_json())
        for picture in pictures
        for index, figure in enumerate(picture.figures)
    }
    # "</script>" inside a string would end the script element.
    data = json.dumps(figures, allow_nan=False).replace("</", "<\\/")
    links = [*((picture.key, picture.title) for picture in pictures), ("trials", table_title)]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}: sweep report</title>",
        f"<style>{STYLE}</style></head><body>",
        f'<h1>{html.escape(title)}</h1><p class="meta">{html.escape(meta)}</p>',
        '<div class="verdict">',
        *(f"<p>{html.escape(sentence)}</p>" for sentence in verdict),
        "</div><nav>",
        *(f'<a href="#{key}">{html.escape(text)}</a>' for key, text in links),
        "</nav>",
        *(_section(picture) for picture in pictures),
        f'<section id="trials" class="long"><h2>{html.escape(table_title)}</h2>',
        f"<p>A click on a heading sorts. {files_note}</p>",
        f'<div class="scroll">{table}</div></section>',
        f'<script type="application/json" id="figures">{data}</script>',
        f"<script>{plotly_js}</script><script>{SCRIPT}</script>",
        "</body></html>",
    ]
    return "\n".join(parts)


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
        f'<p>{html.escape(picture.sentence)}</p>{legend}<div class="{kind}">{places}</div></section>'
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
