"""Files that survive a crash: replaced whole, or grown line by line."""

import errno
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.errors import StorageError, first_line

Record = dict[str, Any]

_GONE = (errno.ENOENT, errno.ESTALE)
_FULL = "free some space"
_REMEDIES = {  # of faults of a disk, and of what lies in a file's place
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "make the disk writable",
    errno.EIO: "repair the disk",
    errno.EACCES: "change the permissions",
    errno.EPERM: "change the permissions",
    **dict.fromkeys(
        (errno.EISDIR, errno.EEXIST, errno.ENOTDIR, errno.ELOOP), "move away what is in its place"
    ),
}

_logger = logging.getLogger(__name__)


def storage_error(action: str, path: Path, error: Exception) -> StorageError:
    """Return an error of the file system: what could not be done, where and with how much space,
    and what to do.

    ``action`` is such as "write a checkpoint"; the path need not exist; a library may hide the
    system's error in its own.
    """
    text = first_line(error)
    number = getattr(error, "errno", 0)
    reason = getattr(error, "strerror", None) or text
    remedy = "put it back" if number in _GONE else _REMEDIES.get(number, "repair that")
    if "No space left" in text or "disk is full" in text:
        remedy = _FULL if _has_inodes(path) else "its inodes are used up: remove some files"
    return StorageError(
        f"cannot {action}: {reason}",
        f"{path}, {_free_space(path)} free",
        f"{remedy}, then resume or start again",
    )


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Put a file in place whole and on disk: readers, and what follows a crash, find the old one or
    the new one.

    ``mode`` holds the permissions of a new file, before the user's mask.

    Raises:
        OSError: the folder cannot be written; an older file is untouched.
    """
    # a driver and a report may write one file at once
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    # What lies there is a dead writer's, or a link that somebody has laid: never written through.
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        draft.unlink(missing_ok=True)
        with open(draft, "wb", opener=lambda name, _: os.open(name, new, mode)) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # the system does not say what it could not write
        raise
    flush_to_disk(path.parent)


def storage_fault(error: Exception, *written: Path) -> StorageError | None:
    """Translate a full, read-only or failing disk into an error for the user; None for other system
    errors.

    So is a folder in the place of a file, or a link to itself. Where the system does not say which
    file it was, it is taken to be on the fullest disk of those that are ``written``, the current
    folder's and that of temporary files.
    """
    if isinstance(error, StorageError):
        return error
    if not isinstance(error, OSError) or error.errno not in _REMEDIES:
        return None
    named = error.filename2 or error.filename
    disks = (
        [Path(named)]
        if isinstance(named, str)
        else [*written, Path.cwd(), Path(tempfile.gettempdir())]
    )
    return storage_error(
        "use the disk", min(disks, key=free_bytes) if disks[1:] else disks[0], error
    )


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class JsonLines:
    """An append-only file with one JSON object per line; every line is on disk when ``append``
    returns.

    A last line without its newline was being written when the writer died; opening cuts it off. The
    file is made by opening and never again: if it disappears later, appending fails. Only the one
    writer opens a file this way; others use `read_json_lines`.

    Raises:
        StorageError: the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("a+b") as file:
                file.seek(0)
                content = file.read()
                torn = len(content) - (content.rfind(b"\n") + 1)
                if torn:
                    _logger.warning(
                        "%s: cut the last line, torn: %d bytes never finished", path, torn
                    )
                    file.truncate(len(content) - torn)
                    os.fsync(file.fileno())
                status = os.fstat(file.fileno())
        except OSError as error:
            raise storage_error(f"open {path}", path, error) from error
        self._identity = (status.st_dev, status.st_ino)

    def append(self, *records: Record) -> None:
        """Write the records as lines, all of them or none.

        Raises:
            StorageError: the file has disappeared or is another one, the disk is full or the write
                failed.
            ValueError: a number that is not finite, which JSON does not have.
        """
        lines = [
            json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records
        ]
        # Half of a surrogate pair, which UTF-8 does not have, becomes the escape that JSON has for
        # it.
        data = "".join(lines).encode("utf-8", "backslashreplace")
        with self._opened() as descriptor:
            size = os.fstat(descriptor).st_size
            try:
                # somebody has cut the file meanwhile
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    data = b"\n" + data
                _write_all(descriptor, data)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise

    def cut(self, offset: int) -> None:
        """Drop what is after a byte, in a new file: what another process still writes into the old
        one is lost.

        Raises:
            StorageError: as of ``append``.
        """
        with self._opened():
            with self.path.open("rb") as file:
                write_atomically(self.path, file.read(offset))
            status = self.path.stat()
            self._identity = (status.st_dev, status.st_ino)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            # Without O_CREAT, so that a folder moved away is noticed instead of being made anew.
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND)
            try:
                status = os.fstat(descriptor)
                if (status.st_dev, status.st_ino) != self._identity:
                    raise FileNotFoundError(errno.ENOENT, "another file has taken its place")
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_error(f"write {self.path}", self.path, error) from error


def read_json_lines(
    path: Path, offset: int = 0, advice: str = "remove the line: what it says is lost"
) -> Iterator[tuple[Record, int]]:
    """Yield the whole lines from byte ``offset`` on, each with the offset that follows it.

    A last line without its newline is still being written, and left out. ``advice`` says what to do
    about a damaged one.

    Raises:
        StorageError: a whole line is not a JSON object; names its number. Or the file cannot be
            read.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise storage_error(f"read {path}", path, error) from error
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            if not isinstance(record, dict):
                number = path.read_bytes()[:offset].count(b"\n") + 1
                raise StorageError(f"{path} is damaged: not a record", f"{path}:{number}", advice)
            offset += len(line)
            yield record, offset


def read_records(path: Path) -> list[Record]:
    """Return all whole lines; none of a file that is not there, as of a run before its first
    record.
    """
    return [record for record, _ in read_json_lines(path)] if path.is_file() else []


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def size_text(count: int) -> str:
    """Return bytes as people read them, decimal."""
    return f"{count / 1e9:.1f} GB" if abs(count) >= 1e9 else f"{count / 1e6:.1f} MB"


def free_bytes(path: Path) -> int:
    """Free space of the disk that a path, which need not exist, is on.

    Raises:
        OSError: it cannot be told.
    """
    return shutil.disk_usage(_existing(path)).free


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _has_inodes(path: Path) -> bool:
    """Return whether another file fits on the disk of a path; some file systems do not count."""
    disk = os.statvfs(_existing(path))
    return disk.f_files == 0 or disk.f_favail > 0


def _free_space(path: Path) -> str:
    """Write `free_bytes` for a message."""
    try:
        return f"{free_bytes(path) / 2**20:.0f} MiB"
    except OSError:
        return "unknown space"
