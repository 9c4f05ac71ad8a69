"""Docstrings: their examples are Python, and each entry of a section starts a line."""

import ast
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("loptune", "rewards", "trainer", "dashboards", "sweep")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
SECTION = re.compile(r"^(Args|Raises|Returns|Yields|Attributes):\n((?:[ \t]+.*\n?|\n)+)", re.M)
ENTRY_WITHIN_A_LINE = re.compile(r"[.;\])] ([A-Za-z_][\w.]*): ")


def documented(file: Path):
    """Return (place, names that may be entries, docstring) of what a file defines."""
    tree = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        text = ast.get_docstring(node)
        if text:
            name = getattr(node, "name", "")
            yield f"{file.relative_to(ROOT)}: {name}", names_of(node), inspect.cleandoc(text)


def names_of(node: ast.AST) -> set[str]:
    """Return the parameters of a function, or those of a class and its fields."""
    names: set[str] = set()
    if isinstance(node, ast.Module):
        return names
    for inner in ast.walk(node):
        if isinstance(inner, ast.arg):
            names.add(inner.arg)
        elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            names.add(inner.target.id)
    return names


def is_entry(word: str, names: set[str]) -> bool:
    last = word.rpartition(".")[2]
    return word in names or last.endswith(("Error", "Interrupt", "Exception"))


def merged_entries(text: str, names: set[str]) -> list[str]:
    """Return the entries of sections that do not start a line."""
    merged = []
    for section in SECTION.finditer(f"{text}\n"):
        for line in section[2].splitlines():
            for found in ENTRY_WITHIN_A_LINE.finditer(line):
                if is_entry(found[1], names):
                    merged.append(found[1])
    return merged


def literal_blocks(text: str) -> list[str]:
    """Return the indented blocks that follow a ``::``."""
    blocks = []
    for found in re.finditer(r"::\n\n((?:    .*\n|\n)+)", f"{text}\n"):
        blocks.append(inspect.cleandoc(found[1]))
    return blocks


def test_an_entry_of_a_section_starts_a_line():
    faults = []
    for file in FILES:
        for place, names, text in documented(file):
            faults += [f"{place}: {entry}" for entry in merged_entries(text, names)]
    assert faults == []


def test_a_merged_entry_is_found():
    text = "Do it.\n\nArgs:\n    a: one. b: two.\n    c: three: four.\n"
    assert merged_entries(text, {"a", "b", "c", "three"}) == ["b"]


def test_examples_are_python():
    examples = 0
    for file in FILES:
        for place, _, text in documented(file):
            for block in literal_blocks(text):
                examples += 1
                try:
                    compile(block, place, "exec")
                except SyntaxError as error:
                    pytest.fail(f"{place}: {error}")
    assert examples > 1


def test_functions_of_an_example_return_a_value():
    text = ast.get_docstring(ast.parse((ROOT / "rewards/custom.py").read_text("utf-8")))
    functions = [
        node
        for block in literal_blocks(text)
        for node in ast.parse(block).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    assert len(functions) == 4
    for function in functions:
        assert isinstance(function.body[-1], ast.Return) and function.body[-1].value, function.name
