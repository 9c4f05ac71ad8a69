"""How much the code asks of its reader: ``python -m benchmarks.density [ROOT [FOLDER ...]]``.

Tokens leave out comments, docstrings and line ends, so width and prose cost nothing: packages have
at most 185,000 together and tests 222,000. Densities are per 1,000 lines: tuple assignments (``a, b
= x, y``), conditional expressions, comprehensions. Empty names are variables and arguments called
something that says nothing. The last column is the share of functions' docstrings that seem to
begin with a verb: their first word is made of letters, ends in no s and is none of ``NO_VERBS``.
``trainer/integrations`` is left out, for other trainers run it.
"""

import ast
import collections
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
EMPTY_NAMES = ("one", "found", "own", "told", "said", "known", "plain", "there", "here")
PACKAGES = ("trainer", "sweep", "dashboards", "rewards")
# first words of docstrings that do not begin with a verb
NO_VERBS = {"a", "an", "the", "of", "what", "where", "whether", "how", "those", "one", "all", "no"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

COLUMNS = ("lines", "tokens", "t/line", "tuples", "ternary", "compr.", "empty", "verbs")


def measure(path: Path) -> collections.Counter[str]:
    """Count what a file holds."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    counts = collections.Counter(lines=source.count("\n"), tokens=count_tokens(source, tree))
    for node in ast.walk(tree):
        counts.update(_kinds(node))
    return counts


def count_tokens(source: str, tree: ast.AST) -> int:
    """Count tokens but those of layout and docstrings."""
    docstrings = set(_docstring_lines(tree))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(
        token.type not in LAYOUT
        and not (token.type == tokenize.STRING and token.start[0] in docstrings)
        for token in tokens
    )


def _docstring_lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        holds_one = isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS))
        if holds_one and ast.get_docstring(node) is not None:
            yield node.body[0].lineno


def _kinds(node: ast.AST) -> Iterator[str]:
    """Yield the names of what a node counts for."""
    if isinstance(node, ast.Assign):
        pair = (node.targets[0], node.value)
        if all(isinstance(side, ast.Tuple) for side in pair):
            yield "tuples"
    if isinstance(node, ast.IfExp):
        yield "ternary"
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        yield "compr."
    stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    if (stored and node.id in EMPTY_NAMES) or (
        isinstance(node, ast.arg) and node.arg in EMPTY_NAMES
    ):
        yield "empty"
    if isinstance(node, FUNCTIONS):
        first = (ast.get_docstring(node) or "").split(" ")[0]
        if first and not any("property" in ast.unparse(mark) for mark in node.decorator_list):
            yield "docstrings"
            word = first.strip(".,:;").lower()
            if word.isalpha() and word not in NO_VERBS and not word.endswith("s"):
                yield "verbs"


def main() -> None:
    """Print a row for each folder, and one for all packages."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    folders = sys.argv[2:] or [*PACKAGES, "tests", "benchmarks"]
    print(f"{'':12}" + "".join(f"{column:>8}" for column in COLUMNS))
    packages: collections.Counter[str] = collections.Counter()
    for folder in folders:
        listed = subprocess.run(
            ["git", "-C", root, "ls-files", f"{folder}/*.py"],
            capture_output=True,
            text=True,
            check=True,
        )
        counts: collections.Counter[str] = collections.Counter()
        for name in listed.stdout.split():
            if "/integrations/" not in name:
                counts.update(measure(root / name))
        if folder in PACKAGES:
            packages.update(counts)
        _print(folder, counts)
    _print("packages", packages)


def _print(folder: str, counts: collections.Counter[str]) -> None:
    lines = max(1, counts["lines"])
    per_line = counts["tokens"] / lines
    rates = [1000 * counts[kind] / lines for kind in ("tuples", "ternary", "compr.")]
    verbs = counts["verbs"] / max(1, counts["docstrings"])
    print(
        f"{folder:12}{counts['lines']:8}{counts['tokens']:8}{per_line:8.2f}"
        + "".join(f"{rate:8.1f}" for rate in rates)
        + f"{counts['empty']:8}{verbs:8.0%}"
    )


if __name__ == "__main__":
    main()
