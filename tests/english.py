"""Phrases that are not native English, found by patterns.

``tests/english.txt`` lists how many hits each file still has. A file may have fewer, never more:
`test_english.py` prints the new ones. ``python -m tests.english`` writes the list again after
texts were reworded.
"""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT
from tests.wording import PACKAGES, sentences

KNOWN = ROOT / "tests" / "english.txt"
GENERATED = ("command_line.md", "metrics.md", "run_keys.md", "space_keys.md", "paper_index.md")
_UNITS = "s|ms|MB|GB|seconds?|tokens?|trials?|ranks?|steps?|nats|cases|comparisons|runs|rows?"
_PER = "step|trial|second|row|rank|seed|token|process|proposal|entry|layout|study|problem|file"
# name -> (pattern, what to write)
PHRASES = {
    "column of the score": (
        r"\bcolumns? of (the |a |runs?' |run )?"
        r"(scores?|seeds?|states?|steps?|settings|names?|run)\b|\bruns' names\b",
        "a compound: score column, run names",
    ),
    "ranks a trial": (rf"\b({_UNITS}) an? ({_PER})\b", "per: four ranks per trial"),
    "is no range": (
        r"(?<![Tt]here )\b(is|are) no (?!longer|more|such|different|better|worse|larger|smaller"
        r"|other|matter)[a-z]+",
        "is not a range",
    ),
    "name a file": (
        r"(^|: |; )([Nn]ame|[Gg]ive) (a|an|the|it|one|another|each|every|its|them|two|all)\b",
        "pass, choose or specify",
    ),
    "picture, draw": (r"\b([Pp]ictures?|[Dd]raws?|[Dd]rawn)\b", "plot, figure; plotted, shown"),
    "texts": (r"\b(texts|a text)\b", "strings, messages; text without an article"),
    "one after the other": (r"\bone after (the other|another)\b", "sequentially; a sequence of"),
    "literary words": (
        r"\b(mend(s|ed)?|lucky|nevertheless|anew|likewise)\b|\b(is|are) gone\b"
        r"|\b(given?|gives|gave) (it )?up\b|\bbesides?\b",
        "fix; missing; discarded; in addition to, next to",
    ),
}


def hits(path: Path) -> list[tuple[str, str]]:
    """Return the phrases in a file as (name of the phrase, passage)."""
    found = []
    for text in passages(path):
        for name, (pattern, _) in PHRASES.items():
            for hit in re.finditer(pattern, text):
                start = max(hit.start() - 30, 0)
                found.append((name, text[start : hit.end() + 30].strip()))
    return found


def passages(path: Path) -> Iterator[str]:
    """Yield what a person reads in a file: messages, docstrings and comments, or paragraphs."""
    source = path.read_text("utf-8")
    if path.suffix == ".md":
        prose = re.sub(r"^(```|~~~).*?^\1", "", source, flags=re.M | re.S)
        prose = re.sub(r"^    .*\n", "", prose, flags=re.M)
        prose = re.sub(r"\]\([^)]*\)|<[^>]*>", "", prose)  # addresses and tags
        for paragraph in re.split(r"\n\s*\n", prose):
            yield " ".join(re.sub(r"`[^`]*`", "CODE", paragraph).split())
        return
    yield from sentences(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            yield " ".join(re.sub(r"`[^`]*`", "CODE", text).split())
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def files() -> list[Path]:
    """Return the files whose English is checked."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in GENERATED]
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return sorted([*pages, *modules, ROOT / "README.md"])


def known() -> Counter[tuple[str, str]]:
    """Return (file, name of the phrase) -> the number of hits that the list has."""
    counts: Counter[tuple[str, str]] = Counter()
    for line in KNOWN.read_text("utf-8").splitlines():
        number, file, phrase = line.split(" ", 2)
        counts[file, phrase] = int(number)
    return counts


def write() -> None:
    """Write the list of hits of all files again."""
    lines = []
    for path in files():
        counts = Counter(phrase for phrase, _ in hits(path))
        for phrase, number in sorted(counts.items()):
            lines.append(f"{number} {path.relative_to(ROOT).as_posix()} {phrase}\n")
    KNOWN.write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    write()
