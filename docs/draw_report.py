"""Make a screenshot of the top of a report: `python docs/draw_report.py REPORT FILE.png`.

The screenshot has the numbers of guides/report.md. With `--first light` or `--first dark`, it shows
only the first screen, for the README.
"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

_WIDTH = 1000
# the parts that the page explains under 1, 2, ...
PARTS = [
    "p.verdict",
    "p.next",
    "section#paired",
    "p.meta",
    "nav",
    "h2#verdict + p",
    "h2#verdict + p + p",
    "section#precision",
]
BADGE = """(part, number) => {
    const badge = document.createElement("b");
    const place = part.getBoundingClientRect();
    badge.textContent = number;
    badge.style.cssText = `position:absolute;left:8px;top:${place.top + scrollY}px;width:28px;
        height:28px;border-radius:14px;background:#c2185b;color:white;text-align:center;
        font:bold 17px/28px sans-serif`;
    document.body.append(badge);
}"""


def main(report: Path, picture: Path, first: str | None) -> None:
    """Write a screenshot of the page down to the last numbered part, with a badge next to every
    part. With ``first``, write it down to the first plot in this color scheme, without badges.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": _WIDTH, "height": 900},
            color_scheme="dark" if first == "dark" else "light",
        )
        page.goto(report.resolve().as_uri(), timeout=300_000)
        page.wait_for_selector("body.drawn", timeout=300_000)
        if first is None:
            _number_parts(page)
        parts = ["section"] if first else PARTS
        last = [part for part in map(page.query_selector, parts) if part is not None][-1]
        box = last.bounding_box()
        assert box is not None
        height = box["y"] + box["height"] + 6
        page.screenshot(
            path=picture, full_page=True, clip={"x": 0, "y": 0, "width": _WIDTH, "height": height}
        )
        browser.close()


def _number_parts(page: Page) -> None:
    """Add a badge next to every part."""
    page.add_style_tag(content="body { padding-left: 44px }")
    page.evaluate("dispatchEvent(new Event('resize'))")
    page.wait_for_timeout(1000)
    for number, selector in enumerate(PARTS, start=1):
        part = page.query_selector(selector)
        if part is None:
            continue  # runs of other programs have no cost and no per-problem records
        page.evaluate(f"([part, number]) => ({BADGE})(part, number)", [part, number])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--first", choices=["light", "dark"])
    words = parser.parse_args()
    main(words.report, words.picture, words.first)
