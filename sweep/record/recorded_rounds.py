"""Rounds of fresh seeds and their results, read from the event log of NAME-confirm."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from dashboards.statistics.difference import Difference
from dashboards.statistics.group_sequential import Design
from dashboards.statistics.seed_noise import Noise
from loptune.files import Record
from sweep.record.sweep_record import SweepRecord
from sweep.search.event_log import rounds_of_another_version
from sweep.search.history import ANALYSIS, PLAN

RoundsOutcome = Literal["better", "not better", "undecided", "open"]


@dataclass(frozen=True)
class RecordedRounds:
    """The design of a confirmation in rounds and its results so far. Finalists are numbered as in
    NAME-confirm.
    """

    design: Design
    known: Noise  # seed noise, from the sweep being confirmed
    # per interim analysis: the finalists that were still open
    analyses: tuple[tuple[Difference, ...], ...] = ()
    # finalist -> metric of a guard -> its difference at the latest analysis
    guards: Mapping[str, Mapping[str, Difference]] = field(default_factory=dict)

    @property
    def retired(self) -> set[str]:
        """Finalists that need no further seeds."""
        decided = [result for result in self.results if result.outcome != "undecided"]
        return {result.configuration for result in decided}

    @property
    def results(self) -> list[Difference]:
        """The results of all analyses, in order."""
        return list(itertools.chain.from_iterable(self.analyses))

    @property
    def outcome(self) -> RoundsOutcome:
        """The outcome so far. better: a finalist is better, and its guards hold. not better: each
        finalist improves by less than the worthwhile gain, or fails a guard. undecided: no analysis
        is left. open: more analyses follow.
        """
        if any(result.outcome == "better" for result in self.results):
            return "better"
        if len(self.retired) == self.design.finalists:
            return "not better"
        if len(self.analyses) == len(self.design.analyses):
            return "undecided"
        return "open"


def recorded_rounds(sweep: SweepRecord) -> RecordedRounds | None:
    """Return the rounds on record; None if the sweep does not run in rounds.

    Raises:
        StorageError: a different version of loptune recorded them, with other fields.
    """
    path = sweep.folder.event_log
    plan = None
    analyses = []
    guards: dict[str, dict[str, Difference]] = {}
    for record in sweep.events:
        if record.get("event") == PLAN:
            plan = record
        elif record.get("event") == ANALYSIS:
            analyses.append(tuple(_read(Difference, each, path) for each in record["results"]))
            for finalist, by_metric in record.get("guards", {}).items():
                guards[finalist] = {
                    metric: _read(Difference, each, path) for metric, each in by_metric.items()
                }
    if plan is None:
        return None
    design = _read(Design, plan["design"], path)
    sd = math.nan if plan["sd"] is None else plan["sd"]
    return RecordedRounds(design, Noise(sd, plan["dof"]), tuple(analyses), guards)


_T = TypeVar("_T", Design, Difference)


def _read(kind: type[_T], record: Record, path: Path) -> _T:
    """Return a recorded dataclass; JSON has no tuples.

    Raises:
        StorageError: the record does not have the fields that this version records.
    """
    known = {field.name for field in fields(kind)}
    required = {field.name for field in fields(kind) if field.default is MISSING}
    unknown = sorted(record.keys() - known)
    missing = sorted(required - record.keys())
    if unknown or missing:
        difference = f"unknown field {unknown[0]}" if unknown else f"no field {missing[0]}"
        raise rounds_of_another_version(difference, str(path))
    values: dict[str, Any] = {}
    for name, value in record.items():
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)
