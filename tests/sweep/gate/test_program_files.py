"""What a campaign runs: a revision in its own checkout, or files that may not change."""

import subprocess

import pytest

from loptune.errors import ConfigError, MissingError
from sweep.gate import git
from sweep.gate.campaign import Campaign, CampaignSpec, start_campaign
from sweep.gate.command_words import check_words
from sweep.gate.program_files import check_files, file_digests, tracked_revision
from tests.refusals import refused

COMMAND = ["python", "train.py", "--seed", "{seed}"]


def run(*words):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.org", *words], check=True)


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    (tmp_path / "project" / "train.py").write_text("import model\n")
    (tmp_path / "project" / "model.py").write_text("SIZE = 1\n")
    return tmp_path / "project"


@pytest.fixture
def repository(here):
    run("init", "--quiet", "-b", "main")
    run("add", "-A")
    run("commit", "--quiet", "-m", "first")
    return here


def test_outside_git_an_edit_of_a_module_beside_the_program_is_refused(here, tmp_path):
    assert tracked_revision(COMMAND) is None
    digests = file_digests(COMMAND, tmp_path / "camp")
    check_files(digests, tmp_path)
    (here / "notes.py").write_text("")  # new, so the program cannot have imported it
    check_files(digests, tmp_path)
    (here / "model.py").write_text("SIZE = 2\n")
    with refused("program-changed", ConfigError, names=("model.py",)):
        check_files(digests, tmp_path)


def test_a_program_that_git_tracks_runs_as_the_commit_and_never_with_uncommitted_changes(
    repository,
):
    assert tracked_revision(COMMAND) == git.head()
    (repository / "model.py").write_text("SIZE = 2\n")
    with refused("uncommitted", ConfigError, names=("model.py",)):
        tracked_revision(COMMAND)
    run("checkout", "--quiet", "model.py")
    (repository / "my data.txt").write_text("some lines\nof data\n")
    run("add", "-A")
    run("commit", "--quiet", "-m", "data")
    run("mv", "my data.txt", "your data.txt")
    assert git.changed_files() == ["my data.txt", "your data.txt"]


def test_a_program_that_git_does_not_track_is_no_revision(repository):
    (repository / "other.py").write_text("")
    assert tracked_revision(["python", "other.py"]) is None


def test_a_checkout_has_its_revision_and_the_data_that_git_ignores(repository, tmp_path):
    (repository / ".gitignore").write_text("data/\n")
    run("add", "-A")
    run("commit", "--quiet", "-m", "ignore data")
    (repository / "data").mkdir()
    (repository / "data" / "train.bin").write_text("1")
    revision = git.head()
    (repository / "model.py").write_text("SIZE = 2\n")
    campaign = repository / "camp"  # inside the repository
    campaign.mkdir()
    (campaign / ".gitignore").write_text("*\n")
    place = git.checkout(campaign, revision)
    assert (place / "model.py").read_text() == "SIZE = 1\n"
    assert (place / "data" / "train.bin").read_text() == "1"
    assert not (place / "camp").exists()


def test_a_checkout_that_is_half_made_or_was_changed_is_made_again(repository, tmp_path):
    campaign = tmp_path / "camp"
    half = campaign / "checkouts" / git.head()
    half.mkdir(parents=True)
    (half / "train.py").write_text("half")
    place = git.checkout(campaign, git.head())
    assert (place / "model.py").read_text() == "SIZE = 1\n"
    (place / "model.py").write_text("SIZE = 3\n")
    (place / "train.py").unlink()
    again = git.checkout(campaign, git.head())
    assert again == place
    assert (place / "model.py").read_text() == "SIZE = 1\n"
    assert (place / "train.py").exists()


def test_commits_with_equal_files_are_the_same_program(repository):
    before = git.head()
    run("commit", "--quiet", "--allow-empty", "-m", "nothing")
    assert git.head() != before
    assert git.same_files(before, git.head())


@pytest.mark.parametrize(
    "code, words",
    [
        ("one-word-command", ["python train.py --seed {seed}"]),
        ("option-after-command", [*COMMAND, "--run"]),
        ("no-seed", ["python", "train.py"]),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused(code, words):
    with refused(code, ConfigError):
        check_words(words, COMMAND)


def test_the_program_may_have_an_option_of_the_name_of_one_of_ours():
    check_words([*COMMAND, "--json", "--lr", "2"], [*COMMAND, "--json"])


def test_protected_files_come_from_one_commit_and_a_proposal_that_changes_them_is_told_so(
    repository, tmp_path
):
    (repository / "eval").mkdir()
    (repository / "eval" / "score.py").write_text("honest\n")
    run("add", "-A")
    run("commit", "--quiet", "-m", "evaluation")
    first = git.head()
    (repository / "eval" / "score.py").write_text("generous\n")
    (repository / "eval" / "extra.py").write_text("more\n")
    (repository / "model.py").write_text("SIZE = 2\n")
    run("add", "-A")
    run("commit", "--quiet", "-m", "a better model, and evaluation")
    idea = git.head()
    protected = git.Protected(first, ("eval",))
    (tmp_path / "camp").mkdir()
    for _ in range(2):  # the second time it is there already
        place = git.checkout(tmp_path / "camp", idea, protected)
        assert (place / "model.py").read_text() == "SIZE = 2\n"
        assert (place / "eval" / "score.py").read_text() == "honest\n"
        assert not (place / "eval" / "extra.py").exists()
    spec = CampaignSpec(worthwhile=0.1, protect=["eval"])
    start_campaign(tmp_path / "other", spec, revision=first)
    with Campaign.read(tmp_path / "other").change() as campaign:
        assert campaign.started["protected"] == {"eval": git.content_hash(first, "eval")}
        assert campaign.protected == protected
        proposal = campaign.propose({}, revision=idea)
        assert proposal.protected == ["eval/extra.py", "eval/score.py"]
    assert Campaign.read(tmp_path / "other").proposals[0].protected == proposal.protected
    with refused("protected-missing", MissingError):
        start_campaign(
            tmp_path / "third", CampaignSpec(worthwhile=0.1, protect=["none"]), revision=first
        )
    assert not (tmp_path / "third" / "campaign.yaml").exists()


def test_a_checkout_has_the_submodules_of_its_revision(repository, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    for words in (["init", "--quiet", "-b", "main"], ["add", "-A"]):
        (library / "helper.py").write_text("X = 1\n")
        run("-C", str(library), *words)
    run("-C", str(library), "commit", "--quiet", "-m", "library")
    campaign = tmp_path / "camp"
    campaign.mkdir()
    allowed = ("-c", "protocol.file.allow=always")
    run(*allowed, "submodule", "--quiet", "add", str(library), "vendor/library")
    run("commit", "--quiet", "-m", "with a submodule")
    first = git.head()
    inside = repository / "vendor" / "library"
    (inside / "helper.py").write_text("X = 2\n")
    run("-C", str(inside), "commit", "--quiet", "-am", "newer")
    run("commit", "--quiet", "-am", "a newer submodule")
    (inside / "helper.py").write_text("X = 3, not committed\n")
    for revision, content in ((first, "X = 1\n"), (git.head(), "X = 2\n")):
        for _ in range(2):
            place = git.checkout(campaign, revision)
            helper = place / "vendor" / "library" / "helper.py"
            assert helper.read_text() == content
            helper.write_text("changed by a run")


def test_a_command_in_a_git_hook_changes_no_branch_of_the_user(repository, tmp_path, monkeypatch):
    """Git tells its hooks by variables which repository and index they are in."""
    first = git.head()
    (repository / "model.py").write_text("SIZE = 2\n")
    run("commit", "--quiet", "-am", "second")
    hook = repository / ".git" / "hooks" / "post-checkout"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))
    (tmp_path / "camp").mkdir()
    place = git.checkout(tmp_path / "camp", first)
    assert (place / "model.py").read_text() == "SIZE = 1\n"
    assert git.head() != first
    assert (repository / "model.py").read_text() == "SIZE = 2\n"
