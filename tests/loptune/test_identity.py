import shutil

import pytest

from loptune.errors import StorageError
from loptune.identity import identity, known_identity
from tests.refusals import refused


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    return folder


def test_a_run_keeps_its_id_and_a_later_one_of_that_name_has_another(run):
    assert known_identity(run) is None
    first = identity(run)
    assert identity(run) == known_identity(run) == first
    shutil.rmtree(run)
    run.mkdir()
    assert identity(run) != first


def test_a_moved_folder_keeps_the_id_and_a_copy_makes_one(run, tmp_path):
    first = identity(run)
    copy = tmp_path / "b"
    shutil.copytree(run, copy)
    assert known_identity(copy) is None
    second = identity(copy)
    assert second == identity(copy) != first == identity(run)
    moved = tmp_path / "c"
    run.rename(moved)
    assert identity(moved) == first
    assert identity(copy) == second
    link = tmp_path / "link"
    link.symlink_to(moved)
    assert identity(link) == first


def test_an_earlier_id_is_kept(run):
    assert identity(run, "by-name") == identity(run) == "by-name"


def test_a_damaged_file_is_named(run):
    (run / "identity.json").write_text("{")
    with refused("identity-unreadable", StorageError, names=("identity.json",)):
        identity(run)
