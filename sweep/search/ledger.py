"""``events.jsonl``: every trial issued and every result, the truth from which a sweep is resumed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainer.files import JsonLines, Record, read_json_lines


class Ledger:
    """The one writer of a ledger.

    Args:
        path: the file; its folder exists.

    Raises:
        StorageError: the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._lines = JsonLines(path)

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write records, all of them or none.

        Raises:
            StorageError: as of ``JsonLines.append``.
        """
        self._lines.append(*records)


def read_ledger(path: Path) -> Iterator[Record]:
    """The records of a ledger, also while its driver writes it.

    Raises:
        StorageError: a line is damaged; says which.
    """
    return (record for record, _ in read_json_lines(path))
