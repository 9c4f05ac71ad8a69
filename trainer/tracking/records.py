"""The local record of a run: one JSON object per line, appended as it happens.

``metrics.jsonl`` is complete whatever becomes of the MLflow server; it is also the queue that the shipper
reads from.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.files import read_json_lines, write_atomically
from trainer.metrics.declared import declaration


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
    for record, end in read_json_lines(path):
        if record["step"] <= step:
            kept += content[start:end]
            if end <= shipped:
                kept_shipped = len(kept)
        elif end <= shipped:
            dropped.append(record)
        start = end
    write_atomically(path, kept)
    return kept_shipped, dropped


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
