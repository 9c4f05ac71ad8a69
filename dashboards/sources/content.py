"""Read text files and databases of other programs, with size limits."""

import gzip
import itertools
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from loptune.errors import StorageError, shortened
from loptune.files import LFS_POINTER, lfs_pointer, open_regular, text_encoding

MAX_BYTES = 1 << 29  # size limit of one file, decompressed
_MAX_VALUE_BYTES = 1 << 26  # size limit of one value in a database
# SQLite virtual machine steps between two calls of the handler: some milliseconds
_STEPS_PER_CALL = 1_000_000
_MAX_STEPS = 1_000


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Return the text of a UTF-8 or UTF-16 file; ``.gz`` files are decompressed.

    Raises:
        StorageError: the text has more than ``most`` bytes or a different encoding, or the file is
            a pointer of Git LFS.
        ValueError: the file cannot be decompressed.
    """
    with open_regular(path) as file:
        if path.suffix.lower() == ".gz":
            content = decompressed(file, most + 1)
        else:
            content = file.read(most + 1)
    if content.startswith(LFS_POINTER):
        raise lfs_pointer(path)
    if len(content) > most:
        raise too_large(path, most)
    try:
        return content.decode(text_encoding(content))
    except UnicodeDecodeError:
        encoding = "UTF-16 without a byte order mark" if b"\0" in content[:100] else "not UTF-8"
        raise StorageError(
            f"the file is {encoding}", str(path), "save it again as UTF-8", code="not-utf-8"
        ) from None


def check_size(path: Path) -> None:
    """Raise StorageError if a file is larger than `MAX_BYTES`."""
    if path.stat().st_size > MAX_BYTES:
        raise too_large(path)


def too_large(path: Path, most: int = MAX_BYTES) -> StorageError:
    """Return the error for a file with more than ``most`` bytes after decompression."""
    return StorageError(
        f"the file is larger than {most >> 20} MiB",
        str(path),
        "keep only the rows and columns that the comparison needs",
        code="file-too-large",
    )


def decompressed(file: BinaryIO, most: int) -> bytes:
    """Return the first ``most`` bytes that a gzip file unpacks to.

    Raises:
        ValueError: the file cannot be decompressed.
    """
    try:
        with gzip.open(file) as unpacked:
            content: bytes = unpacked.read(most)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"it cannot be decompressed: {error}") from None
    return content


def is_utf16(path: Path) -> bool:
    """Return whether the file starts with UTF-16's byte order mark."""
    with open_regular(path) as file:
        return text_encoding(file.read(2)) == "utf-16"


def is_database(path: Path) -> bool:
    """Return whether a file is a SQLite database."""
    with open_regular(path) as file:
        return file.read(16).startswith(b"SQLite format 3")


def open_database(path: Path, mode: str = "ro") -> sqlite3.Connection:
    """Open a SQLite database from an untrusted source. Queries are interrupted if they run too
    long, and values are limited in size. With ``mode="rw"``, a write-ahead log next to the file is
    read, too.

    Raises:
        sqlite3.Error: the database cannot be opened.
    """
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    database.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
    database.execute("PRAGMA trusted_schema = OFF")
    calls = itertools.count()
    database.set_progress_handler(lambda: next(calls) >= _MAX_STEPS, _STEPS_PER_CALL)
    return database


def check_computes_nothing(path: Path) -> None:
    """Reject a database with views before another library reads it without limits.

    Triggers are allowed: MLflow's own databases have some, and reading rows does not run them.

    Raises:
        StorageError: the database has a view.
    """
    with closing(open_database(path)) as database:
        query = "SELECT name FROM sqlite_master WHERE type = 'view'"
        computed = database.execute(query).fetchone()
    if computed:
        raise StorageError(
            f"the database has a view named {shortened(computed[0], 40)}",
            str(path),
            "MLflow's databases have no views: remove the view, or leave the file out",
            code="computing-database",
        )


def database_tables(path: Path) -> set[str]:
    """Return the names of the tables in a SQLite database, which is only read; empty for any other
    file.
    """
    if not is_database(path):
        return set()
    try:
        with closing(open_database(path)) as database:
            rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            return {name for (name,) in rows}
    # UnicodeDecodeError: SQLite's message contains a damaged name
    except (sqlite3.Error, UnicodeDecodeError):
        return set()
