"""Following a sweep while it runs: Tune's events become lines."""

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial

from sweep.record.folder import SweepFolder
from sweep.record.sweep_record import failure_note
from sweep.record.table import TrialRow, parameter_text
from sweep.space.spec import FINISHED_KEY, INTERRUPTED_KEY, REASON_KEY, SCORE, STEP, ResourcesSpec
from trainer.errors import printable
from trainer.shell.table import counted, number

logger = logging.getLogger(__name__)

_WAITING_S = 30.0  # a trial that has its resources starts within seconds
_HEADLINES = ("eval/accuracy", "eval/reward", "eval/completion_length")  # shown beside the score


def say(text: str) -> None:
    """Print a line."""
    print(printable(text), flush=True)


class SweepCallback(tune.Callback):  # type: ignore[misc]
    """Prints what Tune does, a line each. An exception in a callback would end the sweep, so none gets out."""

    def __init__(
        self,
        folder: SweepFolder,
        resources: ResourcesSpec,
        max_failures: int,
        changed: threading.Event,
        rows: Sequence[TrialRow] = (),
    ) -> None:
        self._folder = folder
        self._rows = {row.trial: row for row in rows}
        self._resources = resources
        self._max_failures = max_failures
        self._waiting_since: dict[str, float] = {}
        self._failures: dict[str, int] = {}  # of a trial, when it was last tried again
        self._changed: threading.Event | None = changed  # set when a trial has ended
        self._trials: Sequence[Trial] = ()

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its callbacks; an event cannot be, and a resumed sweep makes its own.
        return {**self.__dict__, "_rows": {}, "_changed": None, "_trials": ()}

    def running(self) -> int:
        """Trials that hold resources now."""
        return sum(trial.status == Trial.RUNNING for trial in self._trials)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return _guarded(value) if name.startswith("on_") else value

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial has its resources."""
        row = self._row(trial)
        self._event(row, f"started    {parameter_text(row.parameters)}")

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A trial has evaluated, or ended early."""
        row = self._row(trial)
        row.step = int(result[STEP])
        row.total_steps = result.get("total_steps", row.total_steps)
        if SCORE in result:
            row.score = result[SCORE]
            shown = " ".join(f"{name} {number(result[name])}" for name in _HEADLINES if name in result)
            self._event(row, f"step {row.step}/{row.total_steps}  score {number(row.score)}  {shown}")

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial has ended; its last result has the state."""
        row, result = self._row(trial), trial.last_result or {}
        if result.get(INTERRUPTED_KEY):
            self._event(row, f"interrupted at step {row.step}; goes on from there after resume")
        elif result.get(REASON_KEY):
            self._event(row, f"failed     {result[REASON_KEY]}")
        elif result.get(FINISHED_KEY):
            self._event(row, f"finished   score {number(row.score)}")
        else:
            self._event(row, f"stopped    by the scheduler at step {row.step}, score {number(row.score)}")
        self._ended(trial)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial failed and is not tried again."""
        self._event(self._row(trial), f"failed     {self._reason(trial)}")
        self._ended(trial)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """A trial failed and is tried again from its newest checkpoint."""
        row, failures = self._row(trial), trial.num_failures
        counts = failures > self._failures.get(trial.trial_id, 0)  # not where the trial's node was lost
        self._failures[trial.trial_id] = failures
        count = f"{failures} of {self._max_failures}" if counts else "not counted"
        self._event(row, f"retry {count}: {self._reason(trial)}")

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Called ten times a second."""
        self._trials = trials
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Say which trials find no free resources, once each time they wait for long."""
        pending = {trial.trial_id: trial for trial in self._trials if trial.status == Trial.PENDING}
        now = time.monotonic()
        since = {name: self._waiting_since.get(name, now) for name in pending}
        for name, trial in pending.items():
            if now - since[name] > _WAITING_S:
                since[name] = math.inf
                self._event(self._row(trial), f"waits for {_free(self._resources)}")
        self._waiting_since = since

    def _row(self, trial: Trial) -> TrialRow:
        config = trial.config
        searched = {key: value for key, value in config["overrides"].items() if key != "seed"}
        fresh = TrialRow(config["trial"], config["configuration"], config["seed"], parameters=searched)
        return self._rows.setdefault(fresh.trial, fresh)

    def _reason(self, trial: Trial) -> str:
        """The failure note of a trial, or Ray's error where its own process died before it wrote one."""
        noted = failure_note(self._folder.trial(trial.config["trial"]))
        error = trial.get_pickled_error()
        told = str(getattr(error, "cause", None) or error or "its process or its node was lost")
        return noted or " ".join(told.split())[:300]

    def _ended(self, trial: Trial) -> None:
        # Tune keeps the extremes and means of every number of a result to its own end: the most of its memory.
        trial.metric_analysis.clear()
        trial.metric_n_steps.clear()
        if self._changed is not None:
            self._changed.set()

    def _event(self, row: TrialRow, text: str) -> None:
        say(f"{row.trial}  {text}")


def _free(resources: ResourcesSpec) -> str:
    needed = {"GPU": resources.gpus_per_trial, "CPU": float(resources.workers_per_trial * resources.cpus_per_worker)}
    free, present = ray.available_resources(), ray.cluster_resources()
    return " and ".join(
        f"{counted(wanted, kind)} ({free.get(kind, 0):g} of {present.get(kind, 0):g} free)"
        for kind, wanted in needed.items()
        if wanted
    )


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return method(*arguments, **options)
        except Exception:
            logger.exception("progress report failed")
            return None

    return call
