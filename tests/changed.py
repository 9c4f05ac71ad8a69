"""Test files of what has changed since a commit: ``python -m tests.changed [COMMIT]``.

A changed module belongs to the tests of its folder: ``trainer/rollouts/x.py`` to
``tests/trainer/rollouts``. `make check` runs them.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ("tests/test_docs.py", "tests/test_messages.py")  # texts of any package are checked there


def changed_files(commit: str) -> list[Path]:
    """Return the files that differ from a commit, and the new ones, relative to the root."""
    names = []
    for words in (["diff", "--name-only", commit], ["ls-files", "--others", "--exclude-standard"]):
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
        names += done.stdout.splitlines()
    return [Path(name) for name in names]


def paths_of_tests(files: Iterable[Path]) -> list[str]:
    """Return the folders and files of tests that belong to changed files, none inside another."""
    found = set()
    for file in files:
        if file.parts[0] == "tests" and file.name.startswith("test_"):
            found.add(file)
            continue
        folder = Path("tests") / file.parent
        while not (ROOT / folder).is_dir():
            folder = folder.parent
        if folder != Path("tests"):
            found.add(folder)
    chosen = []
    for path in sorted(found):
        inside_another = any(parent in found for parent in path.parents)
        if (ROOT / path).exists() and not inside_another:
            chosen.append(str(path))
    return [*chosen, *DOCS]


if __name__ == "__main__":
    print(*paths_of_tests(changed_files(sys.argv[1] if len(sys.argv) > 1 else "HEAD")))
