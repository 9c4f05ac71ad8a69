"""Print Tune's events as progress lines."""

import functools
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import cloudpickle, tune
from ray.tune.experiment import Trial
from rich.console import Console
from rich.text import Text

from sweep.programs.resources import ResourcesSpec
from sweep.record.folder import SweepFolder
from sweep.record.sweep_record import failure_note
from sweep.record.table import parameter_text
from sweep.search.trial_report import GIVEN_UP, TrialReport
from sweep.trials.limits import with_limits
from sweep.trials.nodes import is_lost_node
from trainer.errors import one_line, printable
from trainer.shell.table import counted, number

logger = logging.getLogger(__name__)

_WAITING_S = 30.0  # a trial with resources starts within seconds
_LOOK_S = 0.5
_BEGINNINGS = (  # (file, text that appears in it, message)
    ("config.yaml", "", "ranks have started and are loading the program"),
    ("stderr.log", "ready at step", "program loaded; starting the first step"),
    ("metrics.jsonl", "}", "first step done"),
)
CONSOLE = Console(highlight=False)
_HEADLINE = "eval/accuracy"  # shown in addition to the score, which is a mean over evaluations


def say(text: str) -> None:
    """Print a line above the live table, if there is one."""
    CONSOLE.print(Text(printable(text)), soft_wrap=True)


class SweepCallback(tune.Callback):  # type: ignore[misc]
    """Prints one line per Tune event. An exception in a callback would end the sweep, so all are
    caught and logged.
    """

    def __init__(
        self,
        folder: SweepFolder,
        resources: ResourcesSpec,
        max_failures: int,
        changed: threading.Event,
    ) -> None:
        self._folder = folder
        self._resources = resources
        self._max_failures = max_failures
        self._waiting_since: dict[str, float] = {}
        self._failures: Counter[str] = Counter()  # by trial
        self._changed: threading.Event | None = changed  # set when a trial has ended
        self._trials: Sequence[Trial] = ()
        self._beginnings = list(_BEGINNINGS)  # start-up messages still to print for the first trial
        # file timestamps may be rounded down
        self._begun = time.time() - 1.0
        self._looked = 0.0

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its callbacks, but an Event cannot be pickled.
        return {**self.__dict__, "_changed": None, "_trials": ()}

    def scores(self) -> dict[str, float | None]:
        """Return the trials that hold resources now, each with its latest score."""
        return {
            trial.config["trial"]: TrialReport.of(trial.last_result).score
            for trial in self._trials
            if trial.status == Trial.RUNNING
        }

    def running(self) -> int:
        """Return how many trials hold resources now."""
        return len(self.scores())

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return guarded(value) if name.startswith("on_") else value

    def on_trial_start(self, trial: Trial, **info: Any) -> None:
        """Report that a trial has its resources."""
        searched = {key: value for key, value in trial.config["overrides"].items() if key != "seed"}
        self._event(trial, f"started    {parameter_text(searched)}")

    def on_trial_result(self, trial: Trial, result: dict[str, Any], **info: Any) -> None:
        """Report a trial's evaluation."""
        report = TrialReport.of(result)
        if report.score is not None:
            self._beginnings.clear()
            shown = f"{_HEADLINE} {number(result[_HEADLINE])}" if _HEADLINE in result else ""
            total = f"/{report.total_steps}" if report.total_steps else ""
            if shown or not report.finished:  # a command exits some time after its last evaluation
                self._event(
                    trial, f"step {report.step}{total}  score {number(report.score)}  {shown}"
                )

    def on_trial_complete(self, trial: Trial, **info: Any) -> None:
        """Report that a trial has ended; its last result has the state."""
        report = TrialReport.of(trial.last_result)
        score = number(report.score)
        if report.interrupted:
            self._event(
                trial, f"interrupted at step {report.step}; `sweep resume` continues from there"
            )
        elif report.reason:
            self._event(trial, f"failed     {report.reason}")
        elif report.finished:
            self._event(trial, f"finished   score {score}")
        else:
            self._event(trial, f"stopped    by the scheduler at step {report.step}, score {score}")
        self._ended(trial)

    def on_trial_error(self, trial: Trial, **info: Any) -> None:
        """Report that a trial failed and will not be retried."""
        self._event(trial, f"failed     {self._reason(trial)}")
        self._ended(trial)

    def on_trial_recover(self, trial: Trial, **info: Any) -> None:
        """Count a trial's failures, which Tune does not limit; a lost node does not count.

        Without retries left, the trial is started once more only to report its failure, so that it
        has an ordinary result.
        """
        trial.config["attempt"] += 1  # number of the retry; it invalidates the previous process
        name = trial.config["trial"]
        counts = not is_lost_node(_error_of(trial))
        self._failures[name] += counts
        if self._failures[name] > self._max_failures:
            # if even that process does not start, give up
            trial.max_failures = 0 if GIVEN_UP in trial.config else -1
            trial.config[GIVEN_UP] = self._reason(trial)
        else:
            count = f"{self._failures[name]} of {self._max_failures}" if counts else "not counted"
            self._event(trial, f"retry {count}: {self._reason(trial)}")

    def on_step_end(self, trials: list[Trial], **info: Any) -> None:
        """Check for waiting trials and for start-up progress, ten times a second."""
        self._trials = trials
        self._tell_waiting()
        if self._trials and self._beginnings and time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            self._tell_beginning()

    def _tell_beginning(self) -> None:
        """Report the start-up progress of the first trial, which takes the longest."""
        first = self._trials[0]
        while self._beginnings:
            file, held, meaning = self._beginnings[0]
            path = self._folder.trial(first.config["trial"]) / file
            if (
                not path.exists()
                or path.stat().st_mtime < self._begun
                or held not in path.read_text(errors="replace")
            ):
                return
            self._event(first, meaning)
            del self._beginnings[0]

    def _tell_waiting(self) -> None:
        """Report trials that wait long for resources, once per wait."""
        pending = {trial.trial_id: trial for trial in self._trials if trial.status == Trial.PENDING}
        now = time.monotonic()
        since = {name: self._waiting_since.get(name, now) for name in pending}
        for name, trial in pending.items():
            if now - since[name] > _WAITING_S:
                since[name] = math.inf
                self._event(trial, with_limits(f"waits for {_free(self._resources)}"))
        self._waiting_since = since

    def _reason(self, trial: Trial) -> str:
        """Return a trial's failure note, or Ray's error if its process died before writing one."""
        noted = failure_note(self._folder.trial(trial.config["trial"]))
        error = _error_of(trial)
        cause = getattr(error, "cause", None) or error or "its process or its node was lost"
        return noted or one_line(cause)

    def _ended(self, trial: Trial) -> None:
        # Free the running statistics that Tune keeps for every metric; they are most of its memory.
        trial.metric_analysis.clear()
        trial.metric_n_steps.clear()
        if self._changed is not None:
            self._changed.set()

    def _event(self, trial: Trial, text: str) -> None:
        say(f"{trial.config['trial']}  {text}")


def _error_of(trial: Trial) -> Exception | None:
    """Read the error of a trial's last attempt from its local file, before Tune copies it."""
    path = trial.pickled_error_file
    error: Exception | None = cloudpickle.loads(Path(path).read_bytes()) if path else None
    return error


def _free(resources: ResourcesSpec) -> str:
    needed = {
        "GPU": resources.gpus_per_trial,
        "CPU": float(resources.workers_per_trial * resources.cpus_per_worker),
    }
    free = ray.available_resources()
    present = ray.cluster_resources()
    return " and ".join(
        f"{counted(wanted, kind)} ({free.get(kind, 0):g} of {present.get(kind, 0):g} free)"
        for kind, wanted in needed.items()
        if wanted
    )


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that exceptions are logged: a display error must not end a sweep."""

    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except Exception:
            logger.exception("progress report failed")
            return None

    return call
