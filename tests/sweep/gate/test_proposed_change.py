"""The rules about commit and files of a proposal, one by one."""

import pytest

from loptune.errors import ConfigError
from sweep.gate import git, proposed_change
from sweep.gate.arm import Arm
from tests.refusals import refused


@pytest.mark.parametrize(
    ("base", "proposed", "recorded"),
    [("old", "copy", "old"), ("old", "new", "new"), ("old", None, None), (None, "new", "new")],
)
def test_a_commit_with_the_baselines_files_is_the_baselines(monkeypatch, base, proposed, recorded):
    monkeypatch.setattr(git, "same_files", lambda one, other: {one, other} == {"old", "copy"})
    assert proposed_change.recorded_revision(proposed, Arm({}, None, base)) == recorded


@pytest.mark.parametrize(
    ("base", "proposed", "is_refused"),
    [("old", None, True), ("old", "head", True), ("old", "other", False), (None, "head", False)],
)
def test_uncommitted_changes_matter_where_the_current_commit_runs(
    monkeypatch, base, proposed, is_refused
):
    monkeypatch.setattr(git, "head", lambda: "head")
    monkeypatch.setattr(git, "changed_files", lambda: ["train.py"])
    arm = Arm({}, None, base)
    if is_refused:
        with refused("uncommitted", ConfigError):
            proposed_change.check_committed(proposed, arm)
    else:
        proposed_change.check_committed(proposed, arm)


@pytest.mark.parametrize(
    ("command", "revision", "base", "count"),
    [
        (["python", "train.py"], None, None, 1),
        (["python", "train.py"], "new", None, 0),
        (["python", "train.py"], None, "old", 0),
        (None, None, None, 0),
    ],
)
def test_files_count_only_where_no_commit_identifies_them(
    tmp_path, monkeypatch, command, revision, base, count
):
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    campaign = tmp_path / "camp"
    arm = Arm({}, None, base)
    assert len(proposed_change.files_of_command(command, revision, arm, campaign)) == count
