"""Ray Tune searcher over a search space: baselines first, every configuration once per seed.

The event log (``events.jsonl``) is the only state. The study is built from it for every proposal,
and the sampler is seeded by the proposal's number. Therefore a driver can be killed at any moment
and restarted: trials without a result are submitted again.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from dashboards.trial import EndState
from loptune.errors import StorageError
from loptune.files import Record
from sweep.search.event_log import EventLog
from sweep.search.history import (
    ENDED,
    PROPOSED,
    STARTED,
    Configuration,
    TrialKey,
    add_result,
    configuration_of,
)
from sweep.search.study import propose_next
from sweep.search.trial_report import SCORE, Failure, TrialReport
from sweep.space.points import Parameters, Space, fingerprint
from sweep.space.spec import SweepSpec

logger = logging.getLogger(__name__)


class ConfigurationSearcher(Searcher):  # type: ignore[misc]
    """Proposes (configuration, seed) pairs to Tune and records how they ended.

    ``suggest`` returns ``{"trial": "c003-s0", "configuration": 3, "seed": 0, "attempt": 1,
    "parameters": {...}, "overrides": {...}}``: ``overrides`` are the values of the program's
    searched keys and the seed; ``parameters`` are the active parameters with the switches. Use it
    with ``num_samples=-1``: it ends with ``Searcher.FINISHED``.

    A new searcher on an existing event log resubmits every pair without a result. Use it with a new
    Tuner; ``Tuner.restore``, which restores its own trials, is not supported.

    Args:
        spec: the checked search space.
        event_log_path: ``events.jsonl``; its folder must exist. The file is created only if there
            are no configurations to replay.
        before_trial: called with the next trial's name and the names of running trials; returns
            the attempt number, or calls ``stop``.
        configurations: configurations replayed from the event log; kept up to date.
        capacity: returns how many trials may run concurrently; called before each trial.
    """

    def __init__(
        self,
        spec: SweepSpec,
        event_log_path: Path,
        before_trial: Callable[[str, Sequence[str]], int],
        configurations: list[Configuration],
        capacity: Callable[[], int],
    ) -> None:
        super().__init__(metric=SCORE, mode=spec.objective.mode)
        self.spec = spec
        self.space = Space(spec.parameters)
        self.event_log = EventLog(event_log_path, create=not configurations)
        self.configurations = configurations
        self.running: dict[str, TrialKey] = {}  # Tune's trial id -> trial
        self.stopped = False
        self._before_trial = before_trial
        self._capacity = capacity
        self.failure: StorageError | None = None  # failure to write the event log

    def suggest(self, trial_id: str) -> Any:
        """Return the next trial, None if no more trials may run now, or ``Searcher.FINISHED``.

        Raises:
            StorageError: the event log or the trial's folder cannot be written, or the sweep's
                files have disappeared.
        """
        self._raise_failure()
        if not self.stopped and len(self.running) >= self._capacity():
            return None
        admitted = self._admit_next()
        if admitted is None:
            return Searcher.FINISHED
        key, attempt = admitted
        self._append(event=STARTED, configuration=key.configuration, seed=key.seed)
        self.running[trial_id] = key
        configuration = self.configurations[key.configuration]
        return {
            "trial": key.name,
            "configuration": key.configuration,
            "seed": key.seed,
            "attempt": attempt,
            "parameters": dict(configuration.parameters),
            "overrides": {**configuration.resolved, "seed": key.seed},
        }

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Raise the StorageError of an earlier write to the event log, if any; intermediate results
        are not recorded.
        """
        self._raise_failure()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record how a trial ended.

        COMPLETE: trained to the last step. PRUNED: stopped early; the last score is recorded. FAIL:
        crashed, or without a finite score. A trial that stops with the sweep, or that ends after
        ``stop`` before it is finished, gets no result and is submitted again on resume.
        """
        key = self.running.pop(trial_id, None)
        report = TrialReport.of(result)
        if key is None or report.stopped or (self.stopped and (error or not report.finished)):
            return
        state, score, failure = _final_state(report, error)
        record = self._append(
            event=ENDED,
            configuration=key.configuration,
            seed=key.seed,
            state=state,
            score=score,
            second=None if state == "FAIL" else report.second,
            step=report.step if result else None,
            reason=failure.reason,
            by_settings=failure.by_settings,
        )
        add_result(self.configurations, record)

    def stop(self) -> None:
        """Propose no further trials; trials stopped from now on get no result, so that ``sweep
        resume`` continues them.
        """
        self.stopped = True

    @property
    def open_trials(self) -> Iterator[TrialKey]:
        """Trials of known configurations without a result, in submission order."""
        for configuration in self.configurations:
            if configuration.retired:
                continue
            for seed in configuration.open_seeds(self.spec.seeds):
                yield TrialKey(configuration.number, seed)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing, because the event log has everything; Tune warns if this method is
        missing.
        """

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles the searcher; the driver's functions cannot be pickled.
        return {**self.__dict__, "_before_trial": None, "_capacity": None}

    def _admit_next(self) -> tuple[TrialKey, int] | None:
        """Return the next trial with the number of its attempt; None if there is none left, or if
        the search was stopped, possibly because there is not enough disk space for the trial.
        """
        key = None if self.stopped else self._next_trial()
        if key is None:
            return None
        running = [other.name for other in self.running.values()]
        try:
            attempt = self._before_trial(key.name, running)
        except StorageError as error:
            self.failure = error
            raise
        return None if self.stopped else (key, attempt)

    def _next_trial(self) -> TrialKey | None:
        taken = set(self.running.values())
        while True:
            waiting = next((key for key in self.open_trials if key not in taken), None)
            if waiting is not None or not self._propose():
                return waiting

    def _propose(self) -> bool:
        """Propose and record the next configuration; return whether there was another
        configuration.
        """
        number = len(self.configurations)
        baselines = self.spec.baselines
        if number < len(baselines):
            point: Parameters | None = self.space.complete(baselines[number], self.spec.program)
        else:
            point = propose_next(self.spec, self.configurations)
        if point is None:
            return False
        resolved = self.space.resolve(point, self.spec.program)
        record = self._append(
            event=PROPOSED,
            configuration=number,
            parameters=point,
            resolved=resolved,
            fingerprint=fingerprint(resolved),
        )
        self.configurations.append(configuration_of(record))
        return True

    def _append(self, **values: Any) -> Record:
        # as it will be read from the log
        record: Record = json.loads(json.dumps({**values, "time": time.time()}))
        try:
            self.event_log.append(record)
            return record
        except StorageError as error:
            self.failure = error
            raise

    def _raise_failure(self) -> None:
        # Tune turns an exception of `on_trial_complete` into a failed trial; raised again here, it
        # ends the sweep.
        if self.failure is not None:
            raise self.failure


def _final_state(report: TrialReport, error: bool) -> tuple[EndState, float | None, Failure]:
    """Return state, score and failure of an ended trial. The score is None if the trial failed;
    otherwise the failure has an empty reason.
    """
    if report.reason:
        return "FAIL", None, Failure(report.reason, report.by_settings)
    if error:
        return "FAIL", None, Failure("crashed, with no retries left")
    if report.score is None:
        return "FAIL", None, Failure("ended before its first evaluation")
    if not math.isfinite(report.score):
        return "FAIL", None, Failure(f"score is {report.score}", by_settings=True)
    state: EndState = "COMPLETE" if report.finished else "PRUNED"
    return state, float(report.score), Failure("")
