"""An append-only JSON-lines file that survives a kill at any byte: what a sweep has proposed and learned."""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.errors import StorageError

logger = logging.getLogger(__name__)

Record = dict[str, Any]


class Ledger:
    """The records of one file, in order; every append is on disk before it returns.

    A line without its newline was being written when the writer died; it is cut off on opening. The file is
    created by the first opening and never again: if it disappears later, appending fails. Only the process
    that holds the sweep may open it this way; others read the lines.

    Args:
        path: the file; its folder exists.

    Raises:
        StorageError: the file cannot be read, or a whole line is not a JSON object.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("a+b") as file:
                file.seek(0)
                content = file.read()
                torn = len(content) - (content.rfind(b"\n") + 1)
                if torn:
                    logger.warning("%s: cut %d bytes of a line that was never finished", path, torn)
                    file.truncate(len(content) - torn)
                    os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}", str(path), "check the folder") from error
        self.records = _parse(content, path)

    def append(self, record: Mapping[str, Any]) -> Record:
        """Write one record and flush it to the disk.

        Raises:
            StorageError: the file has disappeared, the disk is full or the write failed; nothing of the
                record is left in the file.
        """
        line = json.dumps(record, allow_nan=False)
        kept: Record = json.loads(line)  # the same value that a later opening reads
        try:
            # Without O_CREAT, so that a folder moved away is noticed instead of being made anew.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            raise StorageError(
                f"the sweep's ledger is gone: {self.path}", str(self.path), "put the folder back, then resume"
            ) from error
        try:
            size = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, line.encode() + b"\n")
                os.fsync(descriptor)
            except OSError as error:
                os.ftruncate(descriptor, size)
                raise StorageError(
                    f"cannot write {self.path}: {error.strerror}",
                    f"{self.path}, {_free_space(self.path)} free",
                    "free some space, then resume",
                ) from error
        finally:
            os.close(descriptor)
        self.records.append(kept)
        return kept


def _parse(content: bytes, path: Path) -> list[Record]:
    records = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise StorageError(f"{path} is damaged: not a record", f"{path}:{number}", "remove the line")
        records.append(record)
    return records


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _free_space(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path.parent).free / 2**20:.0f} MiB"
    except OSError:
        return "unknown space"
