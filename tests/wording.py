"""The wording of all messages in one file: ``python -m tests.wording`` writes it again.

Tests ask for error codes, exit statuses and values. How a message reads is reviewed in the diff of
``tests/wording.txt``.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT

PACKAGES = ("rewards", "trainer", "dashboards", "sweep", "loptune")
SNAPSHOT = ROOT / "tests" / "wording.txt"
MIN_WORDS = 3  # shorter texts are names, keys and headings


def sentences(source: str) -> Iterator[str]:
    """Yield the texts of a module that a person may read, in the order of the code.

    Docstrings are left out. A name in a text is written in braces, any other expression as {...}.
    """
    for text in _texts(ast.parse(source)):
        if len(text.split()) >= MIN_WORDS:
            yield " ".join(text.split())


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the strings below a node. The order is that of the syntax tree, which is the same in
    every version of Python.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile":
        return  # a pattern, which nobody reads
    if isinstance(node, ast.JoinedStr):
        yield "".join(_part(part) for part in node.values)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                yield from _texts(part.value)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def _part(part: ast.expr) -> str:
    """Return a piece of an f-string."""
    if isinstance(part, ast.FormattedValue):
        simple = isinstance(part.value, ast.Name | ast.Attribute)
        return f"{{{ast.unparse(part.value)}}}" if simple else "{...}"
    return str(part.value) if isinstance(part, ast.Constant) else ""


def snapshot() -> str:
    """Return every sentence of the packages, below the path of its file."""
    blocks = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            texts = list(sentences(path.read_text(encoding="utf-8")))
            if texts:
                blocks.append("\n".join([f"# {path.relative_to(ROOT)}", *texts]))
    return "\n\n".join(blocks) + "\n"


def main(path: Path = SNAPSHOT) -> None:
    """Write the snapshot."""
    path.write_text(snapshot(), encoding="utf-8")


if __name__ == "__main__":
    main()
