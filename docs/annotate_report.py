"""Draw the numbers of guides/report.md on the top of a report: `python docs/annotate_report.py
REPORT FILE.png`.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

# What the page explains under 1, 2, ...
PARTS = [
    "p.verdict",
    "section#paired",
    "p.next",
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


def main(report: Path, picture: Path) -> None:
    """Write the picture: the page down to the last part, with a badge beside every part."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 900})
        page.goto(report.resolve().as_uri(), timeout=300_000)
        page.wait_for_selector("body.drawn", timeout=300_000)
        page.add_style_tag(content="body { padding-left: 44px }")
        page.evaluate("dispatchEvent(new Event('resize'))")
        page.wait_for_timeout(1000)
        for number, selector in enumerate(PARTS, start=1):
            part = page.query_selector(selector)
            assert part is not None, f"the report has no {selector}"
            page.evaluate(f"([part, number]) => ({BADGE})(part, number)", [part, number])
        last = page.query_selector(PARTS[-1])
        assert last is not None
        box = last.bounding_box()
        assert box is not None
        height = box["y"] + box["height"] + 16
        page.screenshot(
            path=picture, full_page=True, clip={"x": 0, "y": 0, "width": 1000, "height": height}
        )
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
