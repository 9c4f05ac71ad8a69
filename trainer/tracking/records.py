"""The local record of a run: one JSON object per line, appended as it happens.

``metrics.jsonl`` is complete whatever becomes of the MLflow server; it is also the queue that the shipper
reads from.
"""

import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.errors import StorageError
from trainer.metrics.declared import declaration

_logger = logging.getLogger(__name__)


def cut_torn_line(path: Path) -> int:
    """Remove what follows the last newline, the trace of a process killed while writing.

    Returns:
        The number of bytes removed; 0 for a whole or missing file.
    """
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        torn = len(content) - whole
        if torn:
            file.truncate(whole)
            _logger.warning("%s: the last line was torn; %d bytes cut, every whole line kept", path, torn)
    return torn


def read_records(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the whole lines from byte ``offset`` on, each with the offset that follows it.

    Raises:
        StorageError: a whole line is not a JSON object.
    """
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return  # still being written
            offset += len(line)
            try:
                record = json.loads(line)
            except ValueError:
                raise StorageError(
                    f"a line ending at byte {offset} is not JSON", str(path), "restore the file or remove it"
                ) from None
            yield record, offset


def rewind_lines(path: Path, step: int, shipped: int) -> tuple[int, list[dict[str, Any]]]:
    """Drop the lines of later steps than ``step``.

    Args:
        path: a file of JSON lines with a ``step``.
        step: the last step to keep.
        shipped: offset up to which the lines have been sent.

    Returns:
        The offset up to which the remaining file has been sent, and the dropped records that had been sent.
    """
    if not path.exists():
        return 0, []
    kept_shipped, dropped, start, kept = 0, [], 0, b""
    content = path.read_bytes()
    for record, end in read_records(path):
        if record["step"] <= step:
            kept += content[start:end]
            if end <= shipped:
                kept_shipped = len(kept)
        elif end <= shipped:
            dropped.append(record)
        start = end
    replacement = path.with_name(path.name + ".new")
    replacement.write_bytes(kept)
    os.replace(replacement, path)
    return kept_shipped, dropped


class JsonLines:
    """An append-only file whose every line is on its way to disk when ``append`` returns.

    A line survives the death of the process; a torn one, left by an earlier process, is cut on opening.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        cut_torn_line(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write the records as lines."""
        text = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def metrics_record(metrics: Mapping[str, float], step: int) -> dict[str, Any]:
    """The line of one ``log``: step, time [s since 1970, to the millisecond] and the metrics.

    A value that is not finite is written as null and named under ``nonfinite``.

    Raises:
        KeyError: a name that ``trainer/metrics/declared.py`` does not declare.
    """
    record: dict[str, Any] = {"step": int(step), "time": round(time.time(), 3)}
    nonfinite: dict[str, str] = {}
    for name, value in metrics.items():
        declaration(name)
        number = float(value)
        if math.isfinite(number):
            record[name] = number
        else:
            record[name], nonfinite[name] = None, str(number)
    return {**record, "nonfinite": nonfinite} if nonfinite else record


def metric_values(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite metrics of a line."""
    return {
        name: value
        for name, value in record.items()
        if value is not None and name not in ("step", "time", "nonfinite")
    }
