"""The files of a campaign's program: all runs of a configuration must use the same files.

In a git repository that tracks the program, a configuration is a revision and runs in its own
checkout. Otherwise it runs in the current folder, and the hashes of its files are recorded.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loptune.errors import ConfigError
from sweep.gate import git

_MOST_FILES = 2000  # a folder with more Python files is not considered part of the program
_SKIPPED = {"__pycache__", "runs", "mlruns", "node_modules", "site-packages"}


def tracked_revision(command: Sequence[str]) -> str | None:
    """Return the current commit if git tracks all files of a command line; else None.

    Raises:
        ConfigError: tracked files have uncommitted changes.
    """
    revision = git.head()
    if revision is None or not all(git.is_tracked(path) for path in _named(command)):
        return None
    refuse_uncommitted()
    return revision


def refuse_uncommitted() -> None:
    """Reject uncommitted changes, which are in no revision.

    Raises:
        ConfigError: tracked files have uncommitted changes.
    """
    changed = git.changed_files()
    if changed:
        raise ConfigError(
            f"uncommitted changes in {', '.join(changed[:3])}",
            str(Path.cwd()),
            "every run of a campaign uses a commit: `git commit` the changes, or `git stash` them",
            code="uncommitted",
        )


def check_protected(paths: Sequence[str]) -> None:
    """Check that proposals can still change something outside the protected paths.

    Raises:
        ConfigError: a protected path contains the current folder.
    """
    here = Path.cwd()
    for path in paths:
        if here.is_relative_to(os.path.normpath(here / path)):
            raise ConfigError(
                f"{path or 'an empty path'} contains the whole program, so no proposal could "
                "change it",
                "--protect",
                "list only the files and folders of the evaluation",
                code="all-protected",
            )


def file_digests(command: Sequence[str], campaign: Path) -> dict[str, str]:
    """Return path -> SHA-256 of the files of a command line, and of the Python files in and below
    their folders. Without such files, the Python files of the current folder count. The folder of
    the campaign and folders with more than `_MOST_FILES` Python files are left out.
    """
    named = _named(command)
    paths = set(named)
    for folder in {path.parent for path in named} or {Path.cwd()}:
        beside = _python_files(folder, campaign.resolve())
        listed = [path for path, _ in zip(beside, range(_MOST_FILES + 1), strict=False)]
        if len(listed) <= _MOST_FILES:
            paths.update(listed)
    return {str(path): _digest(path) for path in sorted(paths)}


def check_files(recorded: Mapping[str, str], campaign: Path) -> None:
    """Check that the program's files are unchanged since they were recorded.

    Raises:
        ConfigError: a file has changed or is missing.
    """
    changed = []
    for name, digest in recorded.items():
        path = Path(name)
        if not path.is_file() or _digest(path) != digest:
            changed.append(os.path.relpath(path))
    if changed:
        raise ConfigError(
            f"the program has changed since the baseline ran: {', '.join(changed[:3])}",
            str(campaign),
            "restore the files. To propose an edit, commit the program with git, start a "
            "campaign there, and propose the commit with --revision",
            code="program-changed",
        )


def _named(command: Sequence[str]) -> list[Path]:
    """Return the files in the current folder whose paths occur in a command line."""
    here = Path.cwd()
    paths = []
    for word in command:
        path = here / word
        if "{" not in word and path.is_file() and path.resolve().is_relative_to(here.resolve()):
            paths.append(path)
    return paths


def _python_files(folder: Path, campaign: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        kept = []
        for name in folders:
            inside = Path(place, name)
            environment = (inside / "pyvenv.cfg").exists()
            hidden = name.startswith(".") or name in _SKIPPED
            if not (hidden or environment or inside.resolve() == campaign):
                kept.append(name)
        folders[:] = kept
        yield from (Path(place, name) for name in names if name.endswith(".py"))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
