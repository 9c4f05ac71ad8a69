"""``events.jsonl``, the event log: every submitted trial and every result.

A sweep is resumed from this file. Each line ends with a checksum, because a flipped bit may still
give valid JSON with a different number.
"""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from loptune.errors import StorageError
from loptune.files import JsonLines, Record, read_json_lines
from sweep.search.history import ANALYSIS, ENDED, PROPOSED, RETRIED, STARTED

CHECKSUM = "crc32"

_ADVICE = (
    "restore it from a backup, or remove the line. A lost result is recomputed from the "
    "trial's last checkpoint; a lost configuration cannot be recovered"
)


class EventLog:
    """The only writer of an event log. The folder must exist; the arguments and errors are the same
    as for `JsonLines`.
    """

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self._lines = JsonLines(path, create=create)

    def append(self, *records: Record) -> None:
        """Append all records or none; raises StorageError like ``JsonLines.append``."""
        self._lines.append(*map(with_checksum, records))


def with_checksum(record: Record) -> Record:
    """Return a record as it is written to the file."""
    return {**record, CHECKSUM: _checksum(record)}


def read_checked(path: Path, *, advice: str, code: str) -> Iterator[tuple[int, Record]]:
    """Yield the number and the record, without its checksum, of each complete line; safe while a
    writer appends.

    Args:
        path: file of JSON lines with checksums.
        advice: hint for a damaged line.
        code: code of the error for a wrong checksum.

    Raises:
        StorageError: a line is damaged; the error names it.
    """
    for number, (record, _) in enumerate(read_json_lines(path, advice=advice), start=1):
        checksum = record.pop(CHECKSUM, None)
        if checksum != _checksum(record):
            raise StorageError(
                f"{path} is damaged: a checksum differs", f"{path}:{number}", advice, code=code
            )
        yield number, record


def read_event_log(path: Path) -> Iterator[Record]:
    """Yield the records of an event log without checksums; safe while its driver writes.

    Raises:
        StorageError: a line is damaged, names a configuration that was never proposed, records a
            second result of a trial, or is an interim analysis of another version; the error names
            the line.
    """
    proposed = 0
    ended: set[tuple[int, int]] = set()
    for number, record in read_checked(path, advice=_ADVICE, code="event-log-checksum"):
        if record["event"] == ANALYSIS and "results" not in record:
            raise rounds_of_another_version("an analysis has no results", f"{path}:{number}")
        trial = record.get("configuration", -1), record.get("seed", -1)
        if record["event"] == ENDED:
            if trial in ended:
                raise StorageError(
                    f"{path} is damaged: a second result of one trial",
                    f"{path}:{number}",
                    _ADVICE,
                    code="event-log-second-result",
                )
            ended.add(trial)
        if record["event"] == RETRIED:
            ended.discard(trial)
        missing = _missing_configuration(record, proposed)
        if missing is not None:
            raise StorageError(
                f"configuration {missing} was never proposed before this line of {path}: a "
                "line was lost, or two files were concatenated",
                f"before {path}:{number}",
                "restore it from a backup, or start a sweep under another name",
                code="event-log-lost-configuration",
            )
        if record["event"] == PROPOSED:
            proposed += 1
        yield record


def rounds_of_another_version(difference: str, where: str) -> StorageError:
    """Return the error for the record of a sequential confirmation with other fields.

    Args:
        difference: how the record differs from the records of this version.
        where: the event log, or its line.
    """
    return StorageError(
        f"a different version of loptune recorded these rounds of fresh seeds: {difference}",
        where,
        "the version that started the sweep can still read and resume it; with this version, "
        "run its space again under another --name",
        code="of-another-version",
    )


def _checksum(record: Record) -> str:
    return f"{zlib.crc32(json.dumps(record, sort_keys=True).encode()):08x}"


def _missing_configuration(record: Record, proposed: int) -> int | None:
    """Return the configuration that should have been proposed before this record; None if nothing
    is missing.
    """
    event = record["event"]
    if event == PROPOSED:
        return proposed if record["configuration"] != proposed else None
    if event == ANALYSIS:
        named = [int(result["configuration"]) for result in record["results"]]
    elif event in (STARTED, ENDED, RETRIED):
        named = [record["configuration"]]
    else:
        named = []
    for number in named:
        if not 0 <= number < proposed:
            return int(number)
    return None
