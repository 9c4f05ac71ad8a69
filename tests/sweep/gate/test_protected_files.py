"""Protected files of a campaign, in real repositories: nothing outside of a checkout changes."""

import shutil
import subprocess

import pytest

from loptune.errors import ConfigError
from sweep.commands import gate
from sweep.gate import git
from tests.refusals import refused

SPACE = """
name: toy
program: {command: [python, train.py, "{seed}"]}
objective: {metric: score, worthwhile: 0.1}
baselines: [{}]
search: {configurations: 0}
"""


def run(*words):
    words = ["git", "-c", "user.name=a", "-c", "user.email=a@b.org", *words]
    subprocess.run(words, check=True, capture_output=True)


def commit(message):
    run("add", "-A")
    run("commit", "--quiet", "-m", message)
    return git.head()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A repository with a program and its evaluation."""
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    monkeypatch.chdir(project)
    (project / "train.py").write_text("SIZE = 1\n")
    (project / "data" / "eval.csv").write_text("honest\n")
    (project / "data" / "train.csv").write_text("rows\n")
    run("init", "--quiet", "-b", "main")
    commit("first")
    (tmp_path / "camp").mkdir()
    return project


def contents(folder):
    """Return path -> content of all files below a folder, without following links."""
    paths = (path for path in folder.rglob("*") if ".git" not in path.parts)
    return {str(path): path.read_bytes() for path in paths if path.is_file()}


def test_a_file_that_a_proposal_takes_out_of_git_stays_in_the_users_folder(here, tmp_path):
    first = git.head()
    run("rm", "-r", "--quiet", "--cached", "data")
    (here / ".gitignore").write_text("data/\n")
    idea = commit("data is no longer tracked")
    before = contents(here)
    protected = git.Protected(first, ("data/eval.csv",))
    for _ in range(2):
        place = git.checkout(tmp_path / "camp", idea, protected)
        assert contents(here) == before
        assert (place / "data" / "eval.csv").read_text() == "honest\n"
        assert not (place / "data").is_symlink()
        assert (place / "data" / "train.csv").resolve() == here / "data" / "train.csv"


@pytest.mark.parametrize("is_in_project", [True, False])
def test_a_proposal_that_commits_a_link_as_parent_folder_changes_nothing_behind_it(
    here, tmp_path, is_in_project
):
    first = git.head()
    outside = (here if is_in_project else tmp_path) / "outside"
    outside.mkdir()
    (outside / "eval.csv").write_text("precious\n")
    (outside / "new.csv").write_text("precious, too\n")
    shutil.rmtree(here / "data")
    (here / "data").symlink_to(outside)
    (here / "train.py").write_text("SIZE = 2\n")
    run("add", "train.py", "data")
    run("commit", "--quiet", "-m", "data elsewhere")
    before = contents(tmp_path / "project") | contents(outside)
    for paths in (("data/eval.csv",), ("data",)):
        protected = git.Protected(first, paths)
        for _ in range(2):
            place = git.checkout(tmp_path / "camp", git.head(), protected)
            assert contents(tmp_path / "project") | contents(outside) == before
            assert (place / "train.py").read_text() == "SIZE = 2\n"
            assert (place / "data" / "eval.csv").read_text() == "honest\n"
            assert not (place / "data" / "new.csv").exists()


def test_a_subfolder_that_a_proposal_replaces_by_a_link_is_restored_in_the_checkout(
    here, tmp_path, monkeypatch
):
    (here / "part" / "eval").mkdir(parents=True)
    (here / "part" / "eval" / "score.py").write_text("honest\n")
    first = commit("a part with its own evaluation")
    run("mv", "part", "other")
    (here / "other" / "eval" / "score.py").write_text("not honest\n")
    (here / "part").symlink_to(here / "other")
    idea = commit("a link to this folder")
    (here / "part").unlink()
    (here / "part").mkdir()  # the user is in a real folder
    monkeypatch.chdir(here / "part")
    before = contents(here)
    place = git.checkout(tmp_path / "camp", idea, git.Protected(first, ("eval/score.py",)))
    assert contents(here) == before
    assert place == tmp_path / "camp" / "checkouts" / idea / "part"
    assert (place / "eval" / "score.py").read_text() == "honest\n"


def test_untracked_files_are_not_linked_behind_a_link_or_a_file_of_the_revision(here, tmp_path):
    first = git.head()
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(here / "data")
    (here / "data").symlink_to(outside)
    link = commit("data elsewhere")
    (here / "data").unlink()
    (here / "data").write_text("")
    file = commit("data is a file")
    run("checkout", "--quiet", first)
    (here / "data" / "cache.bin").write_text("1")
    for revision in (link, file):
        git.checkout(tmp_path / "camp", revision)
    assert list(outside.iterdir()) == []


def test_ignored_files_in_a_protected_folder_are_linked_and_added_files_are_removed(here, tmp_path):
    (here / ".gitignore").write_text("*.bin\n")
    first = commit("ignore data")
    (here / "data" / "big.bin").write_text("1")
    (here / "data" / "extra.csv").write_text("more\n")
    idea = commit("more data")
    for _ in range(2):
        place = git.checkout(tmp_path / "camp", idea, git.Protected(first, ("data",)))
        assert (place / "data" / "big.bin").resolve() == here / "data" / "big.bin"
        assert not (place / "data" / "extra.csv").exists()
        assert not (place / "data" / "planted.py").exists()
        (place / "data" / "planted.py").write_text("by a run")


@pytest.fixture
def submodule(here, tmp_path):
    """A submodule at eval/lib; return the first commit that has it."""
    library = tmp_path / "library"
    library.mkdir()
    (library / "score.py").write_text("honest\n")
    run("-C", str(library), "init", "--quiet", "-b", "main")
    run("-C", str(library), "add", "-A")
    run("-C", str(library), "commit", "--quiet", "-m", "library")
    run("-c", "protocol.file.allow=always", "submodule", "add", str(library), "eval/lib")
    return commit("with a submodule")


@pytest.mark.parametrize("path", ["eval", "eval/lib"])
def test_a_protected_submodule_is_checked_out_at_its_protected_revision(
    here, tmp_path, submodule, path
):
    inside = here / "eval" / "lib"
    (inside / "score.py").write_text("not honest\n")
    run("-C", str(inside), "commit", "--quiet", "-am", "newer")
    idea = commit("a newer submodule")
    (inside / "score.py").write_text("not committed\n")
    before = contents(here)
    for _ in range(2):
        place = git.checkout(tmp_path / "camp", idea, git.Protected(submodule, (path,)))
        score = place / "eval" / "lib" / "score.py"
        assert score.read_text() == "honest\n"
        assert contents(here) == before
        score.write_text("by a run")


def test_a_protected_submodule_replaces_the_folder_or_link_that_a_proposal_has_in_its_place(
    here, tmp_path, submodule
):
    run("rm", "--quiet", "--cached", "eval/lib")
    hidden = here / "eval" / "lib" / ".git"
    kept = hidden.read_text()
    hidden.unlink()
    (here / "eval" / "lib" / "planted.py").write_text("")
    folder = commit("a folder")
    shutil.rmtree(here / "eval")
    (here / "eval").symlink_to(tmp_path / "library")
    link = commit("a link")
    run("checkout", "--quiet", submodule)
    (here / "eval" / "lib").mkdir(parents=True, exist_ok=True)
    hidden.write_text(kept)
    run("-C", str(here / "eval" / "lib"), "reset", "--hard", "--quiet")
    before = contents(tmp_path / "library")
    for idea in (folder, link):
        place = git.checkout(tmp_path / "camp", idea, git.Protected(submodule, ("eval/lib",)))
        assert [path.name for path in (place / "eval" / "lib").glob("*.py")] == ["score.py"]
        assert contents(tmp_path / "library") == before


def test_a_run_that_puts_links_into_its_checkout_changes_nothing_behind_them(
    here, tmp_path, submodule
):
    """The submodule behind the link is at the same commit, so resetting it would be possible."""
    place = git.checkout(tmp_path / "camp", submodule)
    shutil.rmtree(place / "eval")
    (place / "eval").symlink_to(here / "eval")
    (here / "eval" / "lib" / "score.py").write_text("not committed\n")
    (here / "train.py").write_text("not committed\n")
    before = contents(here)
    assert git.checkout(tmp_path / "camp", submodule) == place
    assert contents(here) == before
    assert (place / "eval" / "lib" / "score.py").read_text() == "honest\n"
    shutil.rmtree(place)
    place.symlink_to(here)
    assert git.checkout(tmp_path / "camp", submodule) == place
    assert contents(here) == before
    assert (place / "train.py").read_text() == "SIZE = 1\n"
    assert not place.is_symlink()


def test_a_checkout_in_which_a_killed_git_left_its_lock_is_made_again(here, tmp_path):
    place = git.checkout(tmp_path / "camp", git.head())
    [worktree] = (here / ".git" / "worktrees").iterdir()
    (worktree / "index.lock").write_text("")
    (place / "train.py").write_text("changed by a run")
    assert git.checkout(tmp_path / "camp", git.head()) == place
    assert (place / "train.py").read_text() == "SIZE = 1\n"


@pytest.mark.parametrize("path", [".", "", "data/..", ".."])
def test_a_protected_path_that_contains_the_program_is_refused(here, path):
    (here / "toy.yaml").write_text(SPACE)
    commit("a space")
    with refused("all-protected", ConfigError):
        gate.start("camp", space="./toy.yaml", protect=[path])
    assert not (here / "camp").exists()
    gate.start("camp", space="./toy.yaml", protect=["data"])
