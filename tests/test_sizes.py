"""The sizes of functions and files that CONTRIBUTING.md names; ruff holds the parameters."""

import ast

import pytest

from tests.paths import ROOT

FOLDERS = ("dashboards", "rewards", "sweep", "tests", "trainer")
MOST_LINES = {"file": 450, "function": 60}  # of a function, its docstring left out


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_and_no_function_is_long(folder):
    lines = {}
    for path in (ROOT / folder).rglob("*.py"):
        text = path.read_text("utf-8")
        lines["file", str(path), ""] = text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[len(node.body) > 1 and ast.get_docstring(node) is not None]
                lines["function", str(path), node.name] = node.end_lineno - first.lineno + 1
    assert lines
    assert [place for place, count in lines.items() if count > MOST_LINES[place[0]]] == []
