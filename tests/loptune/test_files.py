import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loptune import files
from loptune.errors import StorageError
from loptune.files import (
    JsonLines,
    as_storage_error,
    free_bytes,
    read_json_lines,
    storage_error,
    write_atomically,
)
from tests.json_values import RECORDS, UNHURRIED
from tests.refusals import refused


def write_steps(path, *steps):
    """Write one line per step; return the offset after each."""
    lines = JsonLines(path)
    offsets = []
    for step in steps:
        lines.append({"step": step, "policy/loss": step / 2})
        offsets.append(path.stat().st_size)
    return offsets


def steps_in(path):
    return [record["step"] for record, _ in read_json_lines(path)]


def half_then_full(room):
    """An ``os.write`` that writes half of what it is given, and fails once ``room`` bytes or fewer
    are asked.
    """
    real_write = os.write

    def write(descriptor, data):
        if len(data) <= room:
            raise OSError(28, "No space left on device")
        return real_write(descriptor, data[: len(data) // 2])

    return write


def test_a_file_is_replaced_whole_and_leaves_no_draft(tmp_path):
    path = tmp_path / "state.json"
    write_atomically(path, "längst")
    assert path.read_bytes() == "längst".encode()
    write_atomically(path, b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01"
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_folder_that_has_disappeared_is_an_error_for_the_user(tmp_path):
    path = tmp_path / "sweep" / "state.json"
    with refused("not-written", StorageError, names=(str(path), "restore it")):
        write_atomically(path, "{}")
    assert not path.parent.exists()


def test_a_link_in_the_place_of_the_draft_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("old")
    (tmp_path / f".file.{os.getpid()}.new").symlink_to(victim)
    write_atomically(tmp_path / "file", "new")
    assert victim.read_text() == "old"
    assert (tmp_path / "file").read_text() == "new"


def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    write_atomically(path, "old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["state.json"]


def test_a_full_disk_that_the_system_does_not_name_is_the_fullest(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "free_bytes", lambda path: 0 if path == tmp_path else 2**40)
    fault = as_storage_error(OSError(28, "No space left on device"), tmp_path)
    assert fault is not None and fault.where == f"{tmp_path}, 0 MiB free"


def test_a_full_disk_is_reported_without_a_current_or_a_temporary_folder(tmp_path, monkeypatch):
    def no_folder():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(files.tempfile, "gettempdir", no_folder)
    full = OSError(errno.ENOSPC, "No space left on device")
    for written in ([tmp_path], []):
        fault = as_storage_error(full, *written)
        assert fault is not None and "No space left" in fault.what
    assert "No space left" in storage_error("write", Path("a"), full).what


def test_used_up_inodes_are_named_and_not_the_free_space(tmp_path, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    assert files.storage_error("write", tmp_path, full).hint.startswith("free some space")
    disk = SimpleNamespace(f_files=20, f_favail=0)
    monkeypatch.setattr(files.os, "statvfs", lambda path: disk)
    monkeypatch.setattr(files, "free_bytes", lambda path: 64 * 2**20)
    assert "no free inodes" in files.storage_error("write", tmp_path, full).hint


@UNHURRIED
@given(RECORDS, st.data())
@example([{"half a surrogate pair": "\ud83d"}], None)
def test_records_come_back_as_they_were_written_wherever_the_last_was_cut(
    tmp_path_factory, records, data
):
    path = tmp_path_factory.mktemp("run") / "metrics.jsonl"
    JsonLines(path).append(*records)
    read = list(read_json_lines(path))
    assert [record for record, _ in read] == records
    content = path.read_bytes()
    content.decode()
    cut = 1 if data is None else data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    whole = [record for record, end in read if end <= cut]
    assert [record for record, _ in read_json_lines(path)] == whole
    JsonLines(path).append({"step": 4})
    assert [record for record, _ in read_json_lines(path)] == [*whole, {"step": 4}]


def test_a_torn_last_line_is_named(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_text("{}\n{")
    JsonLines(path)
    assert f"{path}: truncated an incomplete last line (1 bytes)" in caplog.text


@pytest.mark.parametrize("whole", [b"", b'{"step": 1}\n', b'{"step": 1}\n' * 20_000])
@pytest.mark.parametrize("torn", [b"", b"{", b"x" * 200_000])
def test_a_last_line_of_any_length_is_cut(tmp_path, whole, torn):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(whole + torn)
    JsonLines(path)
    assert path.read_bytes() == whole


def test_the_entry_of_a_new_file_is_flushed(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(files, "flush_to_disk", flushed.append)
    path = tmp_path / "metrics.jsonl"
    JsonLines(path).append({"step": 1})
    assert flushed == [tmp_path]
    JsonLines(path)
    assert flushed == [tmp_path]


def test_a_file_with_records_is_not_made_anew(tmp_path):
    path = tmp_path / "events.jsonl"
    write_steps(path, 1)
    JsonLines(path, create=False).append({"step": 2})
    assert steps_in(path) == [1, 2]
    path.unlink()
    with refused("not-written", StorageError, names=(str(path), "No such file")):
        JsonLines(path, create=False)
    assert not path.exists()


@pytest.mark.parametrize("room", [5, 100])
def test_a_full_disk_leaves_no_part_of_the_records(room, tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, 1, 2)
    before = path.read_bytes()
    lines = JsonLines(path)
    monkeypatch.setattr(os, "write", half_then_full(room))
    with refused("not-written", StorageError, names=("No space left on device", "MiB free")):
        lines.append({"step": 3}, {"step": 4, "text": "x" * 200})
    monkeypatch.undo()
    assert path.read_bytes() == before
    lines.append({"step": 3})
    assert steps_in(path) == [1, 2, 3]


def test_another_file_in_its_place_is_not_written_to(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    path.rename(tmp_path / "moved")
    path.write_text("")
    with refused("file-replaced", StorageError):
        lines.append({"step": 1})
    assert path.read_text() == ""


def test_what_may_not_be_written_is_not_called_gone(tmp_path, monkeypatch):
    lines = JsonLines(tmp_path / "metrics.jsonl")

    def no_permission(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", no_permission)  # root, as in a container, may write everywhere
    with refused("not-written", StorageError, names=("Permission denied",)) as caught:
        lines.append({"step": 1})
    assert "put the folder back" not in caught.value.hint


def test_the_space_is_that_of_the_nearest_folder_that_exists(tmp_path):
    gone = tmp_path / "gone" / "deep"
    assert free_bytes(gone) == pytest.approx(free_bytes(tmp_path), rel=0.1)
    error = storage_error("write it", gone, FileNotFoundError(2, "No such file or directory"))
    assert (error.what, error.hint) == (
        "cannot write it: No such file or directory",
        "restore it, then resume or start again",
    )
    assert error.where.startswith(f"{gone}, ") and error.where.endswith(" MiB free")
    hidden = storage_error(
        "save", gone, RuntimeError("SafetensorError: No space left on device (os error 28)")
    )
    assert hidden.hint == "free some space, then resume or start again"


def test_a_number_that_json_lacks_is_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(ValueError, match="JSON"):
        JsonLines(path).append({"step": 1}, {"step": float("nan")})
    assert path.read_bytes() == b""


def test_reading_starts_at_an_offset_and_stops_before_an_unfinished_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    offsets = write_steps(path, 1, 2, 3)
    with path.open("a") as file:
        file.write('{"step": 4, "ti')
    assert [(record["step"], end) for record, end in read_json_lines(path, offsets[0])] == [
        (2, offsets[1]),
        (3, offsets[2]),
    ]


def test_a_damaged_whole_line_names_the_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": \n')
    with refused("record-damaged", StorageError, names=("metrics.jsonl:2",)):
        list(read_json_lines(path))
    with refused("record-damaged", StorageError, names=("metrics.jsonl:2",)):
        list(read_json_lines(path, offset=12))
    path.write_text("[1]\n")
    with refused("record-damaged", StorageError, names=("metrics.jsonl:1",)):
        list(read_json_lines(path))
