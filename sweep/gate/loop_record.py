"""Read the record of a keep-if-better loop, and determine which of its keeps the gate would have
kept.

Two formats are read: tables such as ``results.tsv`` of autoresearch (columns commit, the metric,
memory_gb, status and description; crashes have score 0), also with the columns metric_name and
metric_value as in autoresearch-rl and in NeMo RL's auto-research skill; and ``autoresearch.jsonl``
of pi-autoresearch (a line of type config, then a line for each run).

Such a loop runs each change once. A single run does not show the seed noise, so the noise is passed
by the user (from `sweep noise`), or estimated from the discarded changes between two keeps. Their
scores differ by the noise and by the effects of the changes, so the estimate tends to be too large.
"""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import special

from dashboards.sources.directions import ADD_MODE, usual_direction
from dashboards.statistics.online_levels import lord_level
from dashboards.trial import sign_of
from loptune.errors import ConfigError, MissingError, shortened

_KEPT, _DISCARDED, _CRASHED = "keep", "discard", "crash"
# status -> prefixes of the words that loops write for it
_STATUSES = {
    _KEPT: ("keep", "kept", "accept"),
    _DISCARDED: ("discard", "reject", "revert", "drop", "no_improvement", "no improvement"),
    _CRASHED: ("crash", "fail", "error", "timeout", "oom", "check", "skip", "abort", "invalid"),
}
_TO_SD = 1.4826  # SD of a normal distribution in units of its median absolute deviation
_MAX_CHARS = 40
_FEWEST = 5  # minimum number of discarded changes to estimate the noise
_NAME, _VALUE = "metric_name", "metric_value"  # names of two columns
_NOT_SCORES = ("commit", "memory_gb", "status", "description")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run of a loop."""

    status: str  # keep, discard or crash
    score: float | None  # None if the run crashed
    description: str
    commit: str = ""


@dataclass(frozen=True, kw_only=True)
class LoopRecord:
    """The runs of a loop, in order."""

    metric: str
    mode: Literal["max", "min"]
    entries: tuple[Entry, ...]


@dataclass(frozen=True, kw_only=True)
class Keep:
    """A change that a loop kept, and the data for the gate's decision on it."""

    number: int  # number of the run, from 1
    description: str
    gain: float  # improvement over the previous keep; larger is better
    error: float | None  # standard error of the gain; None: the noise is unknown
    level: float  # significance level of the proposal
    would_keep: bool


@dataclass(frozen=True, kw_only=True)
class Replay:
    """The keeps of a loop, judged by the rules of the gate."""

    record: LoopRecord
    sd: float | None
    sd_from: str  # source of ``sd``, in words
    keeps: tuple[Keep, ...] = field(default=())

    @property
    def would_keep(self) -> int:
        """The number of keeps that the gate would have kept."""
        return sum(keep.would_keep for keep in self.keeps)

    def fields(self) -> dict[str, Any]:
        """Return the content of ``--json``."""
        return {
            "metric": self.record.metric,
            "larger_is_better": sign_of(self.record.mode) > 0,
            "runs": len(self.record.entries),
            "keeps": len(self.keeps),
            "would_keep": self.would_keep if self.sd is not None else None,
            "sd": self.sd,
            "sd_from": self.sd_from,
            "history": [
                {
                    "run": keep.number,
                    "description": keep.description,
                    "gain": keep.gain,
                    "error": keep.error,
                    "level": keep.level,
                    "outcome": "keep" if keep.would_keep else "undecided",
                }
                for keep in self.keeps
            ],
        }


def read_record(path: Path, metric: str | None, mode: Literal["max", "min"] | None) -> LoopRecord:
    """Read the record of a loop.

    Args:
        path: ``results.tsv`` or ``autoresearch.jsonl``.
        metric: score column of a table (JSON lines contain the name of their metric). None:
            ``metric_value`` if the table has this column, else the first column that can hold a
            score.
        mode: direction of the metric; None: for a table, inferred from the metric's name; for JSON
            lines, as declared in the file, or min without a declaration.

    Raises:
        MissingError: there is no such file.
        ConfigError: the file cannot be read or has neither format, a status or score in it is
            invalid, or the name of a table's metric does not show its direction.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingError(
            "no such file", str(path), "pass the results file of a loop", code="no-file"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the file: {error}",
            str(path),
            "pass the results file of a loop",
            code="not-a-record",
        ) from None
    if text.lstrip().startswith("{"):
        return _read_json_lines(path, text, mode)
    return _read_table(path, text, metric, mode)


def _read_table(
    path: Path, text: str, metric: str | None, mode: Literal["max", "min"] | None
) -> LoopRecord:
    rows = list(csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
    columns = list(rows[0]) if rows else []
    scores = [name for name in columns if name not in _NOT_SCORES]
    column = metric or (scores[0] if scores else "")
    name = column
    if metric is None and _VALUE in columns:
        column, name = _VALUE, (rows[0].get(_NAME) or "score")
    if "status" not in columns or column not in columns:
        raise ConfigError(
            f"no column {'status' if 'status' not in columns else column}",
            str(path),
            f"columns: {', '.join(columns) or 'none'}. autoresearch writes commit, val_bpb, "
            "memory_gb, status and description, separated by tabs",
            code="not-a-record",
        )
    entries: list[Entry] = []
    for line, row in enumerate(rows, start=2):
        status = _status(row["status"], f"{path}:{line}", is_first=not entries)
        crashed = status == _CRASHED
        entries.append(
            Entry(
                status=status,
                score=None if crashed else _number(row[column], f"{path}:{line}"),
                description=row.get("description") or "",
                commit=row.get("commit") or "",
            )
        )
    better = usual_direction(name, mode, "--mode", ADD_MODE)
    return LoopRecord(metric=name, mode=better, entries=tuple(entries))


def _read_json_lines(path: Path, text: str, mode: Literal["max", "min"] | None) -> LoopRecord:
    name = "metric"
    direction = mode
    entries: list[Entry] = []
    for line, record in _json_lines(path, text):
        if record.get("type") == "config":
            name = str(record.get("metricName", name))
            stated: Literal["max", "min"] = "min"
            if record.get("bestDirection") == "higher":
                stated = "max"
            direction = mode or stated
            entries = []  # each configuration line starts a new record
        elif "status" in record:
            status = _status(record["status"], f"{path}:{line}", is_first=not entries)
            crashed = status == _CRASHED
            score = None if crashed else _number(record.get("metric"), f"{path}:{line}")
            entries.append(
                Entry(
                    status=status,
                    score=score,
                    description=str(record.get("description", "")),
                    commit=str(record.get("commit", "")),
                )
            )
    return LoopRecord(metric=name, mode=direction or "min", entries=tuple(entries))


def _status(word: Any, where: str, *, is_first: bool) -> str:
    """Return keep, discard or crash for the word that a loop wrote. A baseline counts as kept if it
    is the first run. If it runs again later, it counts as discarded, because it changes nothing.

    Raises:
        ConfigError: the word is unknown, so it is not known whether the change was kept.
    """
    text = str(word or "").strip().lower()
    if text.startswith("baseline"):
        return _KEPT if is_first else _DISCARDED
    for status, beginnings in _STATUSES.items():
        if text.startswith(beginnings):
            return status
    raise ConfigError(
        f"unknown status: {shortened(repr(word), _MAX_CHARS)}",
        where,
        f"write {_KEPT}, {_DISCARDED} or {_CRASHED}",
        code="unknown-status",
    )


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, words in enumerate(text.splitlines(), start=1):
        if not words.strip():
            continue
        try:
            record = json.loads(words)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ConfigError(
                "the line is not a JSON object",
                f"{path}:{line}",
                "remove the line",
                code="not-a-record",
            )
        yield line, record


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"{value!r} is not a score",
            where,
            "write a number, or the status crash",
            code="no-score",
        )
    return number


def replay(record: LoopRecord, *, sd: float | None, false_keeps: float) -> Replay:
    """Return the gate's decisions on the keeps of a loop.

    The first scored run is the baseline. Each keep is compared with the keep before it. The earlier
    keep was selected for its high score, so the gain is biased downward, not upward.

    Args:
        record: record of the loop.
        sd: standard deviation of a score between seeds; None: estimate it.
        false_keeps: bound on the expected fraction of kept changes that are not improvements.
    """
    sign = sign_of(record.mode)
    where = "given"
    if sd is None:
        sd, where = _estimated_sd(record)
    before: float | None = None
    kept: list[int] = []
    keeps = []
    proposals = 0
    for number, entry in enumerate(record.entries, start=1):
        if before is None and entry.score is not None:
            before = sign * entry.score
            continue
        proposals += 1
        if entry.status != _KEPT or entry.score is None or before is None:
            continue
        score = sign * entry.score
        level = lord_level(kept, proposals, false_keeps)
        keep = _judged(entry, number, gain=score - before, sd=sd, level=level)
        if keep.would_keep:
            kept.append(proposals)
        keeps.append(keep)
        before = score
    return Replay(record=record, sd=sd, sd_from=where, keeps=tuple(keeps))


def _judged(entry: Entry, number: int, *, gain: float, sd: float | None, level: float) -> Keep:
    """Return the gate's decision on a change that a loop kept. Without ``sd``, the gate would not
    have kept it.
    """
    error = None
    passes = False
    if sd is not None:
        error = sd * math.sqrt(2)  # standard error of a difference of two scores
        passes = gain > -float(special.ndtri(level)) * error
    return Keep(
        number=number,
        description=entry.description,
        gain=gain,
        error=error,
        level=level,
        would_keep=passes,
    )


def _estimated_sd(record: LoopRecord) -> tuple[float | None, str]:
    """Return a robust estimate of a score's SD from the discarded changes between two keeps, and
    its source in words. The estimate is None if there are too few changes, or if their scores do
    not vary.
    """
    stretches: list[list[float]] = [[]]
    for entry in record.entries:
        if entry.status == _KEPT:
            stretches.append([])
        elif entry.score is not None:
            stretches[-1].append(entry.score)
    deviations: list[float] = []
    for scores in stretches:
        if len(scores) > 1:
            deviations += list(np.abs(np.array(scores) - np.median(scores)))
    if len(deviations) < _FEWEST:
        return None, f"unknown: fewer than {_FEWEST} discarded changes between two keeps"
    spread = _TO_SD * float(np.median(deviations))
    if spread == 0:
        return None, "unknown: the discarded changes all score the same"
    return spread, f"{len(deviations)} discarded changes"
