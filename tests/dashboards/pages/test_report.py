import base64
import csv
import gzip
import json
import re
from dataclasses import replace

import pytest

from dashboards.pages.report import trials_table, write_pages
from dashboards.trial import TRAINING_CURVES, Curve
from tests.dashboards.table import results_of

pytestmark = pytest.mark.slow


# Texts that stand out of their figure.
_CUT_OFF = """[...document.querySelectorAll('.figure')].flatMap(figure => {
  const box = figure.getBoundingClientRect();
  const out = r => r.left < box.left - 1 || r.right > box.right + 1
    || r.top < box.top - 1 || r.bottom > box.bottom + 1;
  return [...figure.querySelectorAll('text')]
    .filter(t => t.textContent.trim() && out(t.getBoundingClientRect()))
    .map(t => `${figure.id}: ${t.textContent}`);
})"""


# Words on an axis that run into the next one.
_RUN_TOGETHER = """[...document.querySelectorAll('.figure .xaxislayer-above')].flatMap(axis => {
  const words = [...axis.querySelectorAll('.xtick text')].filter(word => word.textContent.trim());
  const boxes = words.map(word => word.getBoundingClientRect()).sort((a, b) => a.left - b.left);
  return boxes.slice(1).filter((box, i) => box.left < boxes[i].right)
    .map(() => axis.closest('.figure').id);
})"""
# Headings that stand on the other side than the numbers below them.
_APART = """[...document.querySelectorAll('th')].filter(head => {
  const cell = head.closest('table').tBodies[0].rows[0].cells[head.cellIndex];
  return getComputedStyle(head).textAlign !== getComputedStyle(cell).textAlign;
}).map(head => head.textContent)"""
# Figures that cover a part of another, or have nothing drawn.
_COVERED_OR_EMPTY = """[...document.querySelectorAll('.figure')].filter((figure, i, all) => {
  const box = element => element.querySelector('.main-svg').getBoundingClientRect();
  const one = box(figure);
  return !figure.querySelector('.main-svg .trace, .main-svg .bars')
    || all.slice(i + 1).map(box).some(other =>
    one.left < other.right - 1 && other.left < one.right - 1
    && one.top < other.bottom - 1 && other.top < one.bottom - 1);
}).map(figure => figure.id)"""
_BANDS = ("0.00-0.25", "0.25-0.50", "0.50-0.75", "0.75-0.99", "0.99-1.00")


def demo_results():
    """Ten trials with every training curve and band of token probability."""
    curves = {metric: Curve((10, 20), (0.02, 0.04)) for metric in TRAINING_CURVES}
    latest = {
        f"tokens/{name}_fraction/{band}": 0.2
        for name in ("token", "gradient", "advantage")
        for band in _BANDS
    }
    results = results_of()
    trials = tuple(
        replace(trial, curves=trial.curves | curves, latest=latest) for trial in results.trials
    )
    return replace(results, trials=trials)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_pages(demo_results(), tmp_path_factory.mktemp("report"))


class Visit:
    """A page with everything it asked for and complained about."""

    def __init__(self, browser, path, width, scheme="light"):
        self.requests = []
        self.complaints = []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.set_default_timeout(300_000)  # [ms]; a loaded machine takes a minute
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("body.drawn")


def test_files_name_every_trial(report):
    with (report.parent / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert {row["state"] for row in rows} == {"COMPLETE", "FAIL"}
    assert next(row for row in rows if row["state"] == "FAIL")["reason"] == "diverged <b>"
    page = report.read_text(encoding="utf-8")
    assert all(row["trial"] in page for row in rows)


def test_no_cell_of_the_trials_is_a_formula(tmp_path):
    """Reasons and choices are texts of programs; a spreadsheet would evaluate them."""
    formulas = ['=HYPERLINK("http://x","y")', "+1+1", "@SUM(A1)", "-2+3", "\t=1"]
    plain = ["-0.5", "+3", "lr=1", ""]
    results = results_of()
    trials = []
    for trial, text in zip(results.trials, [*formulas, *plain, "x"], strict=True):
        trials.append(replace(trial, reason=text, parameters={**trial.parameters, "=key": 1}))
    page = write_pages(replace(results, trials=tuple(trials)), tmp_path)
    with (page.parent / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["reason"] for row in rows] == [*(f"'{text}" for text in formulas), *plain, "x"]
    assert "'=key" in rows[0]


def test_the_trials_on_fresh_seeds_are_in_the_table_of_all(tmp_path):
    results = results_of()
    fresh = []
    for trial in results.trials:
        if trial.configuration in ("0", "1"):
            fresh.append(replace(trial, seed=f"1{trial.seed}", score=trial.score + 1))
    both = replace(results, fresh=replace(results, trials=tuple(fresh)))
    headings, rows = trials_table(both)
    marked = [row[headings.index("fresh seed")][0] for row in rows]
    assert marked == ["yes"] * 4 + ["no"] * 10  # the best first
    assert "fresh seed" not in trials_table(results)[0]
    with (write_pages(both, tmp_path).parent / "trials.csv").open(newline="") as file:
        seeds = [row["seed"] for row in csv.DictReader(file) if row["fresh seed"] == "yes"]
    assert seeds == ["10", "11", "10", "11"]


def test_page_refers_to_nothing_outside(report):
    page = report.read_text(encoding="utf-8")
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", page)
    figures = re.search(r'<script type="text/plain" id="figures">(.*?)</script>', page)
    assert figures is not None and len(page) < 2.1e6
    unpacked = json.loads(gzip.decompress(base64.b64decode(figures[1])))
    layouts = [figure["layout"] for figure in unpacked.values()]
    # Margins that follow the labels, which follow the margins, may never come to rest.
    assert len(layouts) >= 10 and not any(layout["margin"]["autoexpand"] for layout in layouts)


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_page_in_a_browser(browser, report, width, scheme):
    visit = Visit(browser, report, width, scheme)
    page = visit.page
    assert visit.complaints == []
    assert visit.requests == [report.as_uri()]
    drawn = page.eval_on_selector_all(
        ".figure",
        "all => all.map(one => one.querySelectorAll('.main-svg .trace, .main-svg .bars').length)",
    )
    assert len(drawn) >= 10 and all(drawn)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate(_CUT_OFF) == [] and page.evaluate(_RUN_TOGETHER) == []
    ink = page.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")
    assert ink == {"light": "rgb(29, 36, 48)", "dark": "rgb(228, 232, 238)"}[scheme]
    hidden = "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
    assert page.eval_on_selector_all(".scroll", hidden) == 0  # every column of a table is in sight
    wide = width > 400  # narrower pages leave the buttons of pictures out
    assert not wide or page.evaluate(_APART) == []
    buttons = page.eval_on_selector_all(".modebar-btn", "all => all.map(one => one.dataset.title)")
    assert any("PNG" in title for title in buttons) == wide and not any(
        "Share" in title for title in buttons
    )
    assert page.locator("td.reason b").count() == 0  # untrusted text stays text
    assert "diverged <b>" in page.locator("td.reason").all_inner_texts()[-1]
    page.close()


def test_table_sorts_by_a_click(browser, report):
    visit = Visit(browser, report, 1200)
    trials = visit.page.locator("table").last  # other tables stand before it

    def column(index):
        return [
            str(text) for text in trials.locator(f"tbody td:nth-child({index})").all_inner_texts()
        ]

    heading = visit.page.get_by_role("button", name="score")
    heading.click()
    scores = column(5)
    assert [float(text) for text in scores[:-1]] == sorted(float(text) for text in scores[:-1])
    assert scores[-1] == ""  # a trial without score is last in either direction
    heading.click()
    scores = column(5)
    assert [float(text) for text in scores[:-1]] == sorted(
        (float(text) for text in scores[:-1]), reverse=True
    )
    assert scores[-1] == ""
    visit.page.get_by_role("button", name="trial").click()
    assert column(1) == sorted(column(1))
    visit.page.close()


def test_print_is_black_on_white_and_fits_the_paper(browser, report):
    visit = Visit(browser, report, 794, "dark")  # A4, printed without margins
    visit.page.emulate_media(media="print")
    visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    ink = visit.page.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")
    assert ink == "rgb(0, 0, 0)"
    widths = visit.page.eval_on_selector_all(".main-svg", "all => all.map(one => one.clientWidth)")
    assert max(widths) <= 680
    assert visit.page.evaluate(_COVERED_OR_EMPTY) == []
    assert visit.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    visit.page.close()
