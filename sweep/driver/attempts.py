"""Attempts at a trial: how they are numbered, when a failed one is retried, when a trial is
abandoned.

Nothing here prints. `Attempts` notifies a display of every event. An error of the display is
logged and does not affect any decision.
"""

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from ray import cloudpickle, tune
from ray.tune.experiment import Trial

from loptune.errors import StorageError, one_line, printable
from sweep.driver.control import StopControl
from sweep.record.disk import CheckpointSpace, shrink_ended
from sweep.record.folder import SweepFolder
from sweep.record.sweep_record import SweepRecord, failure_note
from sweep.search.searcher import ConfigurationSearcher
from sweep.search.trial_report import GIVEN_UP, Failure, TrialReport, TuneResult, cause_of
from sweep.trials.nodes import is_lost_node
from trainer.attempt import begin_attempt, newest_attempt

logger = logging.getLogger(__name__)


class AfterFailure(Enum):
    """The action after a failure."""

    RETRY = "retry"
    REPORT = "report"  # start once more, only to report the failure
    END = "end"  # even the reporting process did not start


class RetryBudget:
    """Counts each trial's failures, which Tune does not limit. The loss of a node is not counted.

    Args:
        max_failures: retries of each trial.
    """

    def __init__(self, max_failures: int) -> None:
        self.max_failures = max_failures
        self._failures: Counter[str] = Counter()
        self._given_up: set[str] = set()
        self._last: dict[str, Failure] = {}

    def after_failure(self, trial: str, failure: Failure, *, node_was_lost: bool) -> AfterFailure:
        """Count a failure and return the action after it.

        A trial is not retried if it has failed twice in a row with the same message, and its
        settings can explain the failure (`Failure`).
        Without retries left, a trial is started once more only to report its failure, so that it
        has an ordinary result.

        Args:
            trial: name of the trial.
            failure: the failure.
            node_was_lost: whether the trial's node was lost; such a failure is not counted.
        """
        if node_was_lost:  # perhaps in the start that only reports the failure
            return AfterFailure.REPORT if trial in self._given_up else AfterFailure.RETRY
        if trial in self._given_up:
            return AfterFailure.END
        self._failures[trial] += 1
        repeats = failure.by_settings and failure == self._last.get(trial)
        self._last[trial] = failure
        if self._failures[trial] <= self.max_failures and not repeats:
            return AfterFailure.RETRY
        self._given_up.add(trial)
        return AfterFailure.REPORT

    def count(self, trial: str) -> int:
        """Return how often a trial has failed."""
        return self._failures[trial]


class AttemptGate:
    """Admits the next attempt at a trial if its storage is available.

    Args:
        sweep: the sweep.
        check_storage: raises a StorageError if the sweep's files have disappeared.
        stop: stops the sweep because of a storage error.
    """

    def __init__(
        self,
        sweep: SweepRecord,
        check_storage: Callable[[], None],
        stop: Callable[[StorageError], None],
    ) -> None:
        self._sweep = sweep
        self._check_storage = check_storage
        self._stop = stop
        self._room = CheckpointSpace(sweep)
        self._shrunk: set[str] = set()

    def admit(self, trial: str, running: Sequence[str]) -> int:
        """Return the number of the trial's next attempt, which fences off earlier attempts; 0 after
        stopping the sweep because there is not enough space for the trial's checkpoints.

        Args:
            trial: name of the trial.
            running: names of the running trials, which also need space for checkpoints.

        Raises:
            StorageError: the sweep's files have disappeared, or the number cannot be written.
        """
        self._check_storage()
        shrink_ended(self._sweep, self._shrunk)
        shortage = self._room.shortage(trial, running)
        if shortage is not None:
            self._stop(shortage)
            return 0
        folder = self._sweep.folder.trial(trial)
        number = newest_attempt(folder) + 1
        begin_attempt(folder, number)
        return number


class Display(Protocol):
    """Shows the events of trials. Any method may raise: the error is logged."""

    def started(self, trial: str, resolved: Mapping[str, Any], point: Mapping[str, Any]) -> None:
        """Show that a trial has its resources. ``resolved`` has the value of every searched key,
        and ``point`` the active parameters, switches included.
        """

    def evaluated(self, trial: str, report: TrialReport) -> None:
        """Show that a trial has evaluated its model."""

    def retried(self, trial: str, reason: str, failures: int | None, most: int) -> None:
        """Show that a trial restarts after a failure.

        Args:
            trial: name of the trial.
            reason: why it failed.
            failures: number of its failures so far; None if this failure is not counted.
            most: maximum number of retries.
        """

    def failed(self, trial: str, reason: str) -> None:
        """Show that a trial has failed and is not retried."""

    def ended(self, trial: str, report: TrialReport) -> None:
        """Show that a trial has ended with this report."""

    def polled(self, running: Sequence[str], pending: Sequence[str]) -> None:
        """Show which trials have resources and which wait for them; called at least twice a
        second.
        """


class Attempts:
    """Numbers the attempts at trials, decides on retries, and notifies a display of the events of
    trials, whether Tune runs them (`TrialEvents`) or a campaign's pool (`sweep.driver.pool`).

    Args:
        folder: the sweep's folder.
        budget: the retries.
        display: shows the events.
    """

    def __init__(self, folder: SweepFolder, budget: RetryBudget, display: Display) -> None:
        self._folder = folder
        self._budget = budget
        self._display: Display | None = display

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its callbacks; a display belongs to this process.
        return {**self.__dict__, "_display": None}

    def started(self, config: Mapping[str, Any]) -> None:
        """Notify the display that a trial has its resources, unless it starts only to report its
        failure.
        """
        if GIVEN_UP not in config:
            searched = dict(config["overrides"])
            searched.pop("seed", None)
            self.notify("started", config["trial"], searched, config["parameters"])

    def evaluated(self, trial: str, result: TuneResult) -> None:
        """Notify the display if a result of a trial is an evaluation."""
        report = TrialReport.of(result)
        if report.evaluation is not None:
            self.notify("evaluated", trial, report)

    def after_failure(
        self, config: dict[str, Any], error: Exception | None, *, node_was_lost: bool
    ) -> AfterFailure:
        """Count a failure, and return the action after it. The next attempt is numbered in
        ``config``: its number fences off the failed attempt's process.
        """
        trial = config["trial"]
        failure = self.failure(trial, error)
        action = self._budget.after_failure(trial, failure, node_was_lost=node_was_lost)
        config["attempt"] += 1
        if action is AfterFailure.RETRY:
            failures = None if node_was_lost else self._budget.count(trial)
            self.notify("retried", trial, failure.reason, failures, self._budget.max_failures)
        else:
            config.setdefault(GIVEN_UP, failure)  # not why the start that reports it has failed
        return action

    def failure(self, trial: str, error: Exception | None) -> Failure:
        """Return a trial's failure with this error; if the error cannot be read (None), with the
        note that the attempt has left, if any.
        """
        if error is not None:
            cause = cause_of(error)
            return Failure.of(error, printable(one_line(cause, 500)) or type(cause).__name__)
        note = ""
        with contextlib.suppress(OSError, ValueError):
            note = failure_note(self._folder.trial(trial))
        return Failure(note or "its process or its node was lost")

    def notify(self, event: str, *values: Any) -> None:
        """Call a method of the display."""
        if self._display is None:
            return
        try:
            getattr(self._display, event)(*values)
        except Exception:
            logger.exception("the display failed to show that a trial %s", event)


def make_searcher(
    sweep: SweepRecord, control: StopControl, capacity: Callable[[], int]
) -> ConfigurationSearcher:
    """Return the searcher of a sweep. A trial without space for its checkpoints stops the sweep.

    Args:
        sweep: the sweep.
        control: stops the sweep.
        capacity: returns how many trials may run now.
    """
    gate = AttemptGate(sweep, control.check_folder, control.fail)
    return ConfigurationSearcher(
        sweep.spec, sweep.folder.event_log, gate.admit, sweep.configurations, capacity
    )


class TrialEvents(tune.Callback):  # type: ignore[misc]
    """Tune's events: tracks the running trials, and passes the events on to `Attempts`.

    Args:
        folder: the sweep's folder.
        budget: the retries.
        display: shows the events.
        changed: set when a trial has ended.
    """

    def __init__(
        self, folder: SweepFolder, budget: RetryBudget, display: Display, changed: threading.Event
    ) -> None:
        self._attempts = Attempts(folder, budget, display)
        self._changed: threading.Event | None = changed
        self._trials: Sequence[Trial] = ()

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its callbacks; an Event belongs to this process.
        return {**self.__dict__, "_changed": None, "_trials": ()}

    def scores(self) -> dict[str, float | None]:
        """Return the trials that have resources now, each with its latest score, or None if it has
        no score.
        """
        scores = {}
        for trial in self._trials:
            if trial.status == Trial.RUNNING:
                scores[trial.config["trial"]] = TrialReport.of(trial.last_result).score
        return scores

    def running(self) -> int:
        """Return how many trials have resources now."""
        return len(self.scores())

    def on_trial_start(self, trial: Trial, **info: Any) -> None:
        """Notify the display that a trial has its resources."""
        self._attempts.started(trial.config)

    def on_trial_result(self, trial: Trial, result: dict[str, Any], **info: Any) -> None:
        """Notify the display of a trial's evaluation."""
        self._attempts.evaluated(trial.config["trial"], result)

    def on_trial_complete(self, trial: Trial, **info: Any) -> None:
        """Notify the display that a trial has ended; its last result has the state."""
        report = TrialReport.of(trial.last_result)
        self._attempts.notify("ended", trial.config["trial"], report)
        self._after_end(trial)

    def on_trial_error(self, trial: Trial, **info: Any) -> None:
        """Notify the display that a trial failed and will not be retried."""
        name = trial.config["trial"]
        failure = trial.config.get(GIVEN_UP) or self._attempts.failure(name, _error_of(trial))
        self._attempts.notify("failed", name, failure.reason)
        self._after_end(trial)

    def on_trial_recover(self, trial: Trial, **info: Any) -> None:
        """Decide whether to retry after a failure."""
        error = _error_of(trial)
        action = self._attempts.after_failure(
            trial.config, error, node_was_lost=is_lost_node(error)
        )
        if action is not AfterFailure.RETRY:
            # Tune ends a trial that has failed more often than this; -1: no limit
            trial.max_failures = 0 if action is AfterFailure.END else -1

    def on_step_end(self, trials: list[Trial], **info: Any) -> None:
        """Store Tune's trials, and notify the display of the ones that have resources or wait for
        them. Tune calls this method ten times a second.
        """
        self._trials = trials
        running = [trial.config["trial"] for trial in trials if trial.status == Trial.RUNNING]
        pending = [trial.config["trial"] for trial in trials if trial.status == Trial.PENDING]
        self._attempts.notify("polled", running, pending)

    def _after_end(self, trial: Trial) -> None:
        # Free the running statistics that Tune keeps for every metric; they are most of its memory.
        trial.metric_analysis.clear()
        trial.metric_n_steps.clear()
        if self._changed is not None:
            self._changed.set()


def _error_of(trial: Trial) -> Exception | None:
    """Read the error of a trial's last attempt from its local file, before Tune copies it; None if
    it cannot be read, for example because its class cannot be imported here.
    """
    if not trial.pickled_error_file:
        return None
    try:
        error: Exception = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    except Exception:
        logger.exception("the error of %s cannot be read", trial.config["trial"])
        return None
    return error
