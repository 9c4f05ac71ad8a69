"""Check out the git revisions that a campaign runs, each in its own folder.

If git fails, the functions raise the MissingError of `run_git`, unless their docstrings say
otherwise.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loptune.errors import MissingError

# variables that refer to a repository, from `git rev-parse --local-env-vars`
_OF_A_HOOK = {
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
}
_SUBMODULE = "160000"  # mode of a submodule in git's index
# Git must neither run the user's hooks, which are meant for the user's own commands, nor update
# submodules: these are checked out here.
_SETTINGS = ("-c", f"core.hooksPath={os.devnull}", "-c", "submodule.recurse=false")
_NOT_LINKED = {"__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


def full_revision(text: str) -> str:
    """Return the commit that a revision currently refers to.

    Raises:
        MissingError: there is no such revision, or the current folder is not in a git repository.
    """
    return run_git("rev-parse", "--verify", f"{text}^{{commit}}").strip()


def head() -> str | None:
    """Return the commit of the current folder. Return None outside of a repository with commits,
    or if git is not installed.
    """
    try:
        return full_revision("HEAD")
    except MissingError:
        return None


def changed_files() -> list[str]:
    """Return the tracked files with uncommitted changes."""
    names = run_git("diff", "HEAD", "--name-only", "--no-renames", "-z")
    return sorted(filter(None, names.split("\0")))


def is_tracked(path: Path) -> bool:
    """Return whether git tracks a file."""
    return bool(run_git("ls-files", "--", str(path)).strip())


def same_files(one: str, other: str) -> bool:
    """Return whether two commits contain the same files."""
    return run_git("rev-parse", f"{one}^{{tree}}") == run_git("rev-parse", f"{other}^{{tree}}")


def content_hash(revision: str, path: str) -> str:
    """Return git's hash of a file or folder in a revision; the path is relative to the current
    folder.

    Raises:
        MissingError: the revision does not contain it.
    """
    try:
        return run_git("rev-parse", "--verify", f"{revision}:./{path}").strip()
    except MissingError:
        raise MissingError(
            f"commit {revision[:9]} does not contain {path}",
            "--protect",
            "list files and folders that git tracks, relative to the current folder",
            code="protected-missing",
        ) from None


def changed_between(one: str, other: str, paths: Sequence[str]) -> list[str]:
    """Return the files below some paths that differ between two commits; paths are relative to the
    current folder.
    """
    listed = run_git("diff", "--name-only", "--relative", "-z", one, other, "--", *paths)
    return sorted(filter(None, listed.split("\0")))


@dataclass(frozen=True)
class Protected:
    """Evaluation files that all revisions of a campaign take from the same commit."""

    revision: str
    paths: tuple[str, ...]  # relative to the folder in which the campaign was started


def checkout(campaign: Path, revision: str, protected: Protected | None = None) -> Path:
    """Return the folder in the checkout of a revision that corresponds to the current folder; check
    the revision out if necessary.

    A checkout is created atomically, and restored to its revision if a run changed it. Untracked
    files, such as data, are symbolic links to the files in the current folder.

    Args:
        campaign: folder of the campaign, which contains the checkouts.
        revision: the commit to check out.
        protected: files that the checkout takes from another commit; None: none.
    """
    target = campaign.resolve() / "checkouts" / revision
    if not _is_checkout_of(target, revision) or not _reset(target, revision):
        _remove(target)
        making = target.with_name(f".making-{revision}")
        _remove(making)
        target.parent.mkdir(exist_ok=True)
        run_git("worktree", "add", "--force", "--detach", str(making), revision)
        run_git("worktree", "move", str(making), str(target))
    prefix = run_git("rev-parse", "--show-prefix").strip()
    if protected is not None:
        _restore(target, [_joined(prefix, name) for name in protected.paths], protected.revision)
    # Submodules and links come last: only then are the folders in which they belong the
    # checkout's own, and not links out of it that the revision contains.
    root = Path(run_git("rev-parse", "--show-toplevel").strip())
    _check_out_submodules(root, target)
    _link_untracked(root, target, campaign.resolve())
    return target / prefix


def _joined(prefix: str, name: str) -> str:
    return os.path.normpath(os.path.join(prefix, name))


def _restore(target: Path, paths: Sequence[str], revision: str) -> None:
    """Restore the protected paths of a checkout to ``revision``, and remove files that its own
    revision or a run added to them. Git does not follow symbolic links in the paths.
    """
    run_git("checkout", "--quiet", "--no-overlay", revision, "--", *paths, here=target)
    run_git("clean", "--quiet", "-ffdx", "--", *paths, here=target)


def _is_checkout_of(folder: Path, revision: str) -> bool:
    """Return whether ``folder`` is the top of a repository at ``revision``."""
    if not folder.is_dir():
        return False
    try:
        # Below a damaged checkout, git may find the repository of a parent folder.
        printed = run_git("rev-parse", "--show-toplevel", "HEAD", here=folder)
    except MissingError:
        return False
    return printed.splitlines() == [str(folder), revision]


def _reset(checkout: Path, revision: str) -> bool:
    """Undo the changes to the files of a checkout. Return whether git could undo them."""
    try:
        run_git("reset", "--quiet", "--hard", revision, here=checkout)
    except MissingError:  # e.g. a killed git left its lock, or a run put a link above a submodule
        return False
    return True


def _remove(folder: Path) -> None:
    if folder.is_symlink():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    run_git("worktree", "prune")


def _check_out_submodules(root: Path, target: Path) -> None:
    """Check out the submodules of ``target`` from the submodules of the repository ``root``.
    The folders of submodules that are not checked out in ``root`` are left empty.
    """
    for entry in filter(None, run_git("ls-files", "--stage", "-z", here=target).split("\0")):
        mode, revision = entry.split()[:2]
        name = entry.partition("\t")[2]
        if mode != _SUBMODULE:
            continue
        source = root / name
        inside = target / name
        obstacle = _in_the_way(target, inside)
        if obstacle is not None:  # made by a run: git has replaced obstacles of other revisions
            obstacle.unlink()
        if not _is_checkout_of(inside, revision) or not _reset(inside, revision):
            shutil.rmtree(inside, ignore_errors=True)
            inside.mkdir(parents=True, exist_ok=True)
            if not (source / ".git").exists():
                continue
            run_git("worktree", "prune", here=source)
            words = ("worktree", "add", "--force", "--detach", str(inside), revision)
            run_git(*words, here=source)
        _check_out_submodules(source, inside)


def _link_untracked(root: Path, target: Path, campaign: Path) -> None:
    """Link the untracked files of the repository in ``root`` into a checkout."""
    listed = run_git("ls-files", "--others", "--directory", "-z", here=root)
    for name in filter(None, listed.split("\0")):
        if _in_the_way(target, (target / name).parent) is None:
            _link(root / name, target / name, campaign)


def _link(source: Path, link: Path, campaign: Path) -> None:
    """Link a file or folder into a checkout. If the checkout has a folder of its own there, such as
    one with protected files, link what is missing in it.
    """
    if source.name in _NOT_LINKED or campaign.is_relative_to(source.resolve()):
        return
    if link.is_symlink() or link.is_file():
        return
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source)
    elif source.is_dir():
        for path in sorted(source.iterdir()):
            _link(path, link / path.name, campaign)


def _in_the_way(target: Path, folder: Path) -> Path | None:
    """Return the first symbolic link or file in the part of ``folder`` below ``target``, itself
    included; None if there is none. Behind a link, paths are not in the checkout.
    """
    for part in reversed([folder, *folder.parents]):
        is_below = part != target and part.is_relative_to(target)
        if is_below and (part.is_symlink() or part.is_file()):
            return part
    return None


def run_git(*words: str, here: Path | None = None) -> str:
    """Return the output of a git command.

    Args:
        words: arguments of git.
        here: folder in which git runs; None: the current folder.

    Raises:
        MissingError: git is not installed, or the command failed.
    """
    # If a git hook starts loptune, git has set variables such as GIT_DIR and GIT_INDEX_FILE. With
    # them, git would use the user's own branch and index in every folder.
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    environment["GIT_LITERAL_PATHSPECS"] = "1"  # take paths such as runs/[1] as they are
    try:
        ended = subprocess.run(
            ["git", *_SETTINGS, *words],
            cwd=here,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise MissingError("git is not installed", "git", "install it", code="no-git") from None
    if ended.returncode:
        raise MissingError(
            f"git {words[0]} failed: {ended.stderr.strip()}",
            str(here or Path.cwd()),
            "choose a revision of the repository in which the campaign was started",
            code="no-revision",
        )
    return ended.stdout
