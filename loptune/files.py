"""Crash-safe files: atomic replacement and append-only JSON lines."""

import codecs
import contextlib
import errno
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from loptune.errors import StorageError, first_line

Record = dict[str, Any]

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BLOCK = 1 << 16  # bytes per read from the end of a file
_GONE = (errno.ENOENT, errno.ESTALE)
_FULL = "free some space"
_REMEDIES = {  # errno -> suggested fix
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "make the disk writable",
    errno.EIO: "repair the disk",
    errno.EACCES: "change the permissions",
    errno.EPERM: "change the permissions",
    **dict.fromkeys(
        (errno.EISDIR, errno.EEXIST, errno.ENOTDIR, errno.ELOOP),
        "remove or rename the file or folder at that path",
    ),
}

_logger = logging.getLogger(__name__)


def storage_error(
    action: str, path: Path, error: Exception, code: str = "not-written"
) -> StorageError:
    """Convert a file system error to a StorageError with the failed action, the free space and a
    suggested fix.

    ``action`` completes "cannot ...", such as "write a checkpoint"; ``code`` identifies the kind of
    fault. The path need not exist. The OSError may be wrapped in a library's exception.
    """
    text = first_line(error)
    number = getattr(error, "errno", 0)
    reason = getattr(error, "strerror", None) or text
    remedy = "restore it" if number in _GONE else _REMEDIES.get(number, "fix the problem")
    if "No space left" in text or "disk is full" in text:
        remedy = _FULL if _has_inodes(path) else "the disk has no free inodes: delete some files"
    return StorageError(
        f"cannot {action}: {reason}",
        f"{path}, {_free_space(path)} free",
        f"{remedy}, then resume or start again",
        code=code,
    )


def text_encoding(start: bytes) -> str:
    """Return the encoding of a file that starts with these bytes: UTF-16 if they are its byte order
    mark, otherwise UTF-8, with or without a byte order mark.
    """
    return "utf-16" if start.startswith(_UTF16) else "utf-8-sig"


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. This never blocks: a pipe, which would block, is rejected.

    Raises:
        StorageError: the path is a pipe, device, socket or folder.
        OSError: the file cannot be opened.
    """
    check_regular(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # replaced since it was checked
        file.close()
        raise _not_regular(path)
    return file


def check_regular(path: Path) -> None:
    """Check that a path is a file, not a pipe, device, socket or folder.

    Raises:
        StorageError: the path is something else.
        OSError: the path does not exist, or cannot be accessed.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise _not_regular(path)


def check_downloaded(path: Path) -> None:
    """Raise if a file is a Git LFS pointer instead of the data, as after ``git clone`` without Git
    LFS.

    Raises:
        StorageError: the file is a pointer.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(len(LFS_POINTER))
    if start == LFS_POINTER:
        raise lfs_pointer(path)


def json_object(path: Path) -> dict[str, Any] | None:
    """Return the object that a JSON file contains; None if the file contains anything else."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def lfs_pointer(path: Path) -> StorageError:
    """Return the error for a Git LFS pointer."""
    return StorageError(
        "the file is a Git LFS pointer, not the data",
        str(path),
        "run `git lfs pull` in its repository to download the data",
        code="lfs-pointer",
    )


def _not_regular(path: Path) -> StorageError:
    return StorageError(
        "this is not a regular file, but a pipe, device, socket or folder",
        str(path),
        "save its content to a file",
        code="no-regular-file",
    )


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file atomically and durably: readers, and a restart after a crash, see either the old
    or the new content.

    ``mode`` gives the permissions of the new file, before the umask.

    Raises:
        StorageError: the folder has disappeared.
        OSError: the folder cannot be written. An existing file is unchanged.
    """
    # per-process name: a driver and a report may write the same file at once
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    # A draft may already exist, left by a dead writer or planted as a symlink: never write through
    # it.
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        draft.unlink(missing_ok=True)
        with open(draft, "wb", opener=lambda name, _: os.open(name, new, mode)) as file:
            if isinstance(content, str):
                # surrogates come from file names that the locale's encoding cannot represent
                content = content.encode("utf-8", "backslashreplace")
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        flush_to_disk(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):  # the folder has disappeared
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _GONE:
            raise storage_error(f"write {path}", path, error) from error
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # os.fsync and write errors carry no file name
        raise


def as_storage_error(error: Exception, *written: Path) -> StorageError | None:
    """Convert an OSError about a full, read-only or failing disk, missing permissions or a wrong
    file type, such as a folder where a file should be, to a StorageError. Return a StorageError
    unchanged, and None for other errors.

    An error without a file name is attributed to the disk with the least free space among the disks
    of ``written``, the current folder and the temporary folder.
    """
    if isinstance(error, StorageError):
        return error
    if not isinstance(error, OSError) or error.errno not in _REMEDIES:
        return None
    named = error.filename2 or error.filename
    if isinstance(named, str):
        return storage_error("use the disk", Path(named), error)
    return storage_error("use the disk", _fullest([*written, *_used_folders()]), error)


def _used_folders() -> Iterator[Path]:
    """Yield the current and the temporary folder, if they exist."""
    for find in (os.getcwd, tempfile.gettempdir):
        with contextlib.suppress(OSError):
            yield Path(find())


def _fullest(paths: Sequence[Path]) -> Path:
    """Return the path on the disk with the least free space among the disks that can be read; the
    current folder if none can be.
    """
    free = {}
    for path in paths:
        with contextlib.suppress(OSError):
            free[path] = free_bytes(path)
    return min(free, key=lambda path: free[path], default=Path())


def flush_to_disk(path: Path) -> None:
    """Fsync a file, or the entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size_of_lines(file: BinaryIO) -> int:
    """Return the size of a file up to the end of its last complete line [bytes]."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


class JsonLines:
    """An append-only JSON lines file; ``append`` returns after the lines are on disk.

    Opening truncates an incomplete last line, left by a writer that died. The file is never
    recreated later: if it disappears, `append` fails. Only the single writer may use this class;
    readers use `read_json_lines`.

    Args:
        path: the file.
        create: whether to create the file if it is missing. A writer that has read records from the
            file must not create it: an empty file would lose them.

    Raises:
        StorageError: the file cannot be read or written, or is missing and must not be created.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        try:
            with path.open("a+b" if create else "r+b") as file:
                status = os.fstat(file.fileno())
                complete = _size_of_lines(file)
                torn = status.st_size - complete
                if torn:
                    _logger.warning("%s: truncated an incomplete last line (%d bytes)", path, torn)
                    file.truncate(complete)
                    os.fsync(file.fileno())
            if not status.st_size:
                flush_to_disk(path.parent)  # the file is new: after a crash it must not be missing
        except OSError as error:
            raise storage_error(f"open {path}", path, error) from error
        self._identity = (status.st_dev, status.st_ino)

    def append(self, *records: Record) -> None:
        """Append all records, or none if the write fails.

        Raises:
            StorageError: the file was removed or replaced, or the write failed.
            ValueError: NaN or infinity, which JSON does not support.
        """
        data = _lines_of(records)
        with self._opened() as descriptor:
            size = os.fstat(descriptor).st_size
            try:
                # the last line is incomplete if another process truncated the file in the meantime
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    data = b"\n" + data
                _write_all(descriptor, data)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise

    def cut(self, offset: int) -> None:
        """Truncate to ``offset`` bytes by replacing the file, so that later writes of another
        process to the old file are ignored.

        Raises:
            StorageError: as in ``append``.
        """
        with self._opened():
            with self.path.open("rb") as file:
                write_atomically(self.path, file.read(offset))
            status = self.path.stat()
            self._identity = (status.st_dev, status.st_ino)

    def rewrite(self, records: Sequence[Record], head: int) -> int:
        """Replace all lines, and return the size [bytes] of the first ``head`` records.

        Raises:
            StorageError, ValueError: as in ``append``.
        """
        with self._opened():
            write_atomically(self.path, _lines_of(records))
            status = self.path.stat()
            self._identity = (status.st_dev, status.st_ino)
        return len(_lines_of(records[:head]))

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            # No O_CREAT: fail if the folder was moved, instead of recreating the file.
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND)
            try:
                status = os.fstat(descriptor)
                if (status.st_dev, status.st_ino) != self._identity:
                    replaced = FileNotFoundError(
                        errno.ENOENT, "the file was replaced by another one"
                    )
                    raise storage_error(f"write {self.path}", self.path, replaced, "file-replaced")
                yield descriptor
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_error(f"write {self.path}", self.path, error) from error


def read_json_lines(
    path: Path, offset: int = 0, advice: str = "remove the line; its data is lost"
) -> Iterator[tuple[Record, int]]:
    """Yield (record, end offset) for each complete line from byte ``offset``.

    A last line without a newline is still being written and is skipped. ``advice`` is the hint for
    a damaged line.

    Raises:
        StorageError: the file cannot be read, or a complete line is not a JSON object (the error
            shows the line number).
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise storage_error(f"read {path}", path, error, "not-read") from error
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
                raise StorageError(
                    f"{path} is damaged: the line is not a JSON object",
                    f"{path}:{number}",
                    advice,
                    code="record-damaged",
                )
            offset += len(line)
            yield record, offset


def read_records(path: Path) -> list[Record]:
    """Return the records of all complete lines; empty if the file does not exist yet.

    Raises:
        StorageError: as in `read_json_lines`.
    """
    return [record for record, _ in read_json_lines(path)] if path.is_file() else []


def _lines_of(records: Sequence[Record]) -> bytes:
    lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records]
    # lone surrogates cannot be encoded as UTF-8: write them as JSON escapes
    return "".join(lines).encode("utf-8", "backslashreplace")


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def format_bytes(count: int) -> str:
    """Format a byte count in decimal MB or GB."""
    return f"{count / 1e9:.1f} GB" if abs(count) >= 1e9 else f"{count / 1e6:.1f} MB"


def free_bytes(path: Path) -> int:
    """Return the free space of the disk of ``path``, which need not exist.

    Raises:
        OSError: the disk usage cannot be read.
    """
    return shutil.disk_usage(_existing(path)).free


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _has_inodes(path: Path) -> bool:
    """Return whether the disk has free inodes; True if the file system does not count inodes, or
    the disk cannot be read.
    """
    try:
        disk = os.statvfs(_existing(path))
    except OSError:
        return True
    return disk.f_files == 0 or disk.f_favail > 0


def _free_space(path: Path) -> str:
    """Format `free_bytes` for a message."""
    try:
        return f"{free_bytes(path) / 2**20:.0f} MiB"
    except OSError:
        return "unknown space"
