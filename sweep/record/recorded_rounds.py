"""Rounds of fresh seeds and their results, read from the event log of NAME-confirm."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dashboards.statistics.difference import Difference
from dashboards.statistics.group_sequential import Design
from dashboards.statistics.seed_noise import Noise
from loptune.errors import StorageError
from sweep.record.sweep_record import SweepRecord
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
        """better: a finalist is better, and its guards hold. not better: each finalist improves by
        less than the worthwhile gain, or fails a guard. undecided: no analysis is left. open: more
        analyses follow.
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
        StorageError: another version of loptune recorded them, with other fields.
    """
    try:
        return _read(sweep)
    except (KeyError, TypeError) as error:
        raise StorageError(
            f"another version of loptune recorded the rounds of {sweep.folder.name}: {error}",
            str(sweep.folder.event_log),
            "the version that started the sweep can still read and resume it; with this version, "
            "run its space again under another --name",
            code="of-another-version",
        ) from None


def _result(record: dict[str, Any]) -> Difference:
    """Return a finalist's recorded result; JSON has no tuples."""
    interval = record["interval"]
    return Difference(**{**record, "interval": None if interval is None else tuple(interval)})


def _read(sweep: SweepRecord) -> RecordedRounds | None:
    plan = None
    analyses = []
    guards: dict[str, dict[str, Difference]] = {}
    for record in sweep.events:
        if record.get("event") == PLAN:
            plan = record
        elif record.get("event") == ANALYSIS:
            analyses.append(tuple(_result(result) for result in record["results"]))
            for finalist, by_metric in record.get("guards", {}).items():
                guards[finalist] = {metric: _result(of) for metric, of in by_metric.items()}
    if plan is None:
        return None
    design: dict[str, Any] = {}
    for key, value in plan["design"].items():
        # JSON has no tuples
        design[key] = tuple(value) if isinstance(value, list) else value
    sd = math.nan if plan["sd"] is None else plan["sd"]
    return RecordedRounds(Design(**design), Noise(sd, plan["dof"]), tuple(analyses), guards)
