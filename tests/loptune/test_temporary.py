"""Folders in the temporary directory, and what killed processes left there."""

import os
import subprocess
import sys
import time

import pytest

from loptune.temporary import remove_leftovers, temporary_folder


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def made_old(path):
    os.utime(path, (time.time() - 4000,) * 2)
    return path


def test_a_folder_is_private_and_removed_at_the_end(place):
    with temporary_folder("study") as folder:
        assert folder.parent == place and folder.name.startswith("loptune-tmp-study-")
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "copy").touch()
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(place):
    line = (
        "import os, signal\n"
        "from loptune.temporary import temporary_folder\n"
        "with temporary_folder('study') as folder:\n"
        "    (folder / 'copy').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", line], env={**os.environ, "TMPDIR": str(place)})
    (left,) = place.iterdir()
    with temporary_folder("results"):
        assert left.exists()  # too young: a process may be about to lock it
    made_old(left)
    with temporary_folder("results"):
        assert not left.exists()


def test_a_folder_in_use_is_kept_however_old_it_is(place):
    with temporary_folder("rehearsal") as folder:
        made_old(folder)
        assert remove_leftovers() == []
        assert folder.exists()


def test_marks_and_scratch_folders_without_an_owner_are_removed_and_nothing_else(place):
    removed = [place / "loptune-error-0123456789abcdef", place / "loptune-abcd_123"]
    removed[0].touch()
    removed[1].mkdir()
    (removed[1] / "owner").touch()  # killed before it was written
    kept = [place / "loptune-notes", place / "loptune-tmp-link", place / "loptune-sweep_01"]
    kept[0].mkdir()
    (place / "outside").mkdir()
    kept[1].symlink_to(place / "outside")
    kept[2].mkdir()
    (kept[2] / "owner").write_text("/runs/demo\n")
    for path in [*removed, kept[0], kept[2], place / "outside"]:
        made_old(path)
    assert set(remove_leftovers()) == set(removed)
    assert all(path.exists() for path in kept)
