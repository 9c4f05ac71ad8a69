"""Configuration with which Sphinx builds the site from the Markdown pages: `make docs`. The links
in index.md become the site's table of contents.
"""

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "loptune"
author = "loptune's authors"
release = metadata.version("loptune")

# The whole repository is the source, so that a link leads to the same file here and on a hosting
# service.
root_doc = "docs/index"
include_patterns = ["docs/**", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".ipynb": "notebook"}
myst_heading_anchors = 4
highlight_language = "bash"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}

html_theme = "furo"
html_static_path = ["site.css", "site.js"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_title = f"loptune {release}"
html_show_sphinx = False
html_show_copyright = False


class NotebookParser(MystParser):
    """A parser that reads a notebook as the Markdown of its cells."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Parse text cells unchanged, and code cells with their printed output as blocks."""
        parts = []
        for cell in json.loads(inputstring)["cells"]:
            text = "".join(cell["source"])
            parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
            parts += [
                f"```text\n{''.join(output['text'])}```" for output in cell.get("outputs", [])
            ]
        super().parse("\n\n".join(parts), document)


def add_table_of_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append a hidden table of contents to index.md: a part for each heading, with the pages that
    are linked below it.
    """
    if page != root_doc:
        return
    trees = []
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE)[1:]:
        caption, _, text = section.partition("\n")
        pages = re.findall(r"\]\(([\w./]+\.(?:md|ipynb))\)", text)
        trees.append("\n".join([f"```{{toctree}}\n:hidden:\n:caption: {caption}\n", *pages, "```"]))
    source[0] += "\n\n" + "\n\n".join(trees) + "\n"


def write_llms_text(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt: the pages with their descriptions, for programs that read documentation."""
    if error is not None:
        return
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    lines = ["# loptune", "", "> Which update rule should I train my language model with?", ""]
    for line in index.splitlines():
        heading = re.match(r"## (.+)", line)
        row = re.match(r"\| \[(.+?)\]\(([\w./]+)\)[^|]*\| (.+?) \|", line)
        if heading:
            lines += ["", f"## {heading[1]}", ""]
        elif row:
            target = (Path("docs") / row[2]).as_posix().replace("docs/../", "")
            page = re.sub(r"\.(md|ipynb)$", ".html", target)
            lines.append(f"- [{row[1]}]({page}): {row[3]}")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_front_door(app: Sphinx, error: Exception | None) -> None:
    """Redirect from the site's root to its first page."""
    if error is None:
        target = '<meta http-equiv="refresh" content="0; url=docs/index.html">'
        (Path(app.outdir) / "index.html").write_text(target, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Add the notebook's parser and the event handlers."""
    app.add_source_parser(NotebookParser)
    app.connect("source-read", add_table_of_contents)
    app.connect("build-finished", write_front_door)
    app.connect("build-finished", write_llms_text)
