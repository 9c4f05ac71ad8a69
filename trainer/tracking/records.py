"""The local record of a run: one JSON object per line, appended as it happens.

``metrics.jsonl`` is complete whatever becomes of the MLflow server; it is also the queue that the shipper
reads from.
"""

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.files import Record, read_json_lines
from trainer.metrics.declared import declaration


def lines_after(path: Path, step: int) -> tuple[int, list[tuple[Record, int]]]:
    """Where the lines of later steps than ``step`` begin, and those lines, each with the offset that follows it.

    Steps are logged in order, so that nothing of an earlier one follows.

    Args:
        path: a file of JSON lines with a ``step``.
        step: the last step to keep.
    """
    cut = 0
    later: list[tuple[Record, int]] = []
    for record, end in read_json_lines(path) if path.exists() else ():
        if later or record["step"] > step:
            later.append((record, end))
        else:
            cut = end
    return cut, later


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


def recorded_times(path: Path) -> tuple[int, int] | None:
    """When the first line began to be measured, and the last was written [ms since 1970]; None without lines."""
    records = [record for record, _ in read_json_lines(path)] if path.exists() else []
    if not records:
        return None
    first = records[0]
    seconds = float(first.get("time/evaluation") or first.get("time/step") or 0)
    return round(1000 * (first["time"] - seconds)), round(1000 * records[-1]["time"])
