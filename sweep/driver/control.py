"""Stop a sweep in an orderly way on signals, spent budgets, the stop file, or a crash of Ray.

From Ctrl-C to a rank, every stop takes the same path: `request_stop` writes the stop file, which
reaches every machine; each rank sees the file at its next training step, saves a checkpoint and
returns a `TrialReport` that is ``stopped``. A stopped trial has no result and is submitted again on
resume.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import ray
from ray import tune

from loptune.errors import StorageError
from loptune.terminal.interrupt import on_interrupt
from sweep.record.folder import request_stop
from sweep.record.sweep_record import SweepRecord
from sweep.search.trial_report import TrialReport
from sweep.trials.nodes import CUT_OFF_S, listens, remember_silent_nodes

POLL_S = 0.5
_WATCH_S = 1.0
# seconds without a connection after which a daemon on this machine is considered dead
_SILENCE_S = 4.0
# seconds for this process to exit by itself: a call that waits for a dead Ray never returns
_GRACE_S = 6.0


class StopControl(tune.Stopper):  # type: ignore[misc]
    """Asks all trials to stop at their next training step; only the first reason is kept.

    Tune calls ``stop_all`` ten times a second. A trial that sees the stop file saves a checkpoint
    and ends, and no new trial starts, so the sweep ends within one training step.
    """

    def __init__(self, sweep: SweepRecord, resume: str) -> None:
        self.reason: str | None = None
        self.by_user = False  # the reason is a signal or `sweep stop`
        self.problem: StorageError | None = None  # set if storage is the reason
        # set by the watch thread if Ray has died: no orderly stop is possible
        self.ray_error: StorageError | None = None
        self.folder = sweep.folder
        self.resume = resume  # command that resumes the sweep
        self._limits = sweep.spec.limits
        self._gpus_per_trial = sweep.spec.resources.gpus_per_trial
        self._gpu_seconds = sweep.gpu_hours() * 3600
        self._stop_search: Callable[[], None] = lambda: None
        self._running: Callable[[], int] = lambda: 0
        self._started = self._polled = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its stopper; the callbacks belong to this process.
        return {**self.__dict__, "_stop_search": None, "_running": None}

    @property
    def stopped(self) -> bool:
        """Whether a stop was requested."""
        return self.reason is not None

    def attach(self, stop_search: Callable[[], None], running: Callable[[], int]) -> None:
        """Set the functions that stop the search and count the running trials."""
        self._stop_search = stop_search
        self._running = running

    def start_clock(self) -> None:
        """Start counting the time limit now."""
        self._started = time.monotonic()

    def request_stop(self, reason: str, *, by_user: bool) -> None:
        """Stop for this reason; later reasons are ignored.

        Args:
            reason: the reason, for messages.
            by_user: whether a signal or `sweep stop` is the reason.
        """
        if not self.stopped:
            self.reason = reason
            self.by_user = by_user
            # a folder that cannot be written stops the ranks without the request
            with suppress(StorageError):
                request_stop(self.folder)
            self._stop_search()

    def fail(self, problem: StorageError) -> None:
        """Stop because of a storage error, which is not a trial's failure."""
        self.problem = self.problem or problem
        self.request_stop("the sweep has stopped", by_user=False)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Record a storage error that a trial reports; never stop a single trial."""
        fault = TrialReport.of(result).storage
        if fault is not None:
            self.fail(fault.error())
        return False

    def stop_all(self) -> bool:
        """Return whether the sweep was stopped and no trial is running. Check the time limit, the
        budget, the stop file and the event log first.

        Raises:
            StorageError: the sweep's folder has disappeared, or Ray has died.
        """
        if self.ray_error is not None:
            raise self.ray_error
        now = time.monotonic()
        if now - self._polled >= POLL_S:
            self._gpu_seconds += (now - self._polled) * self._gpus_per_trial * self._running()
            self._polled = now
            self._poll(now)
        return self.stopped and self._running() == 0

    def check_folder(self) -> None:
        """Raise a StorageError if the sweep's folder, event log or space is missing. A trial's
        write error may only be a consequence of that.
        """
        folder = self.folder
        parts = {"folder": folder.root, "event log": folder.event_log, "search space": folder.space}
        for what, path in parts.items():
            if not path.exists():
                raise StorageError(
                    f"the {what} of sweep {folder.name} has disappeared",
                    str(path),
                    "restore it, then resume",
                    code="sweep-files-gone",
                )

    def _poll(self, now: float) -> None:
        self.check_folder()
        limits = self._limits
        if self.folder.stop.exists():
            self.request_stop("stopped by `sweep stop`", by_user=True)
        elif limits.time_budget_s is not None and now - self._started > limits.time_budget_s:
            self.request_stop(
                f"the time budget of {limits.time_budget_s:g} s is used up", by_user=False
            )
        elif limits.gpu_hours is not None and self._gpu_seconds > limits.gpu_hours * 3600:
            self.request_stop(
                f"the budget of {limits.gpu_hours:g} GPU hours is used up", by_user=False
            )


def graceful_signals(
    control: StopControl, show: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Stop at the next training step after a SIGINT, SIGTERM or SIGHUP. If the sweep is stopping
    already, raise KeyboardInterrupt instead.

    ``show`` prints the resume command on the first signal. If the signal also reaches Ray's
    processes (at the end of a batch job), Ray kills this process before it can print its last line.
    """

    def handle(received: signal.Signals) -> None:
        if control.stopped:
            raise KeyboardInterrupt
        control.request_stop(f"received {received.name}", by_user=True)
        later = f"To resume later: {control.resume}"
        show(
            "stopping after the current training step; press Ctrl-C or signal again to stop "
            f"at once. {later}"
        )

    return on_interrupt(handle)


@contextmanager
def ray_watchdog(control: StopControl) -> Iterator[None]:
    """End the sweep soon after Ray has died within the block. Calls into a dead Ray block for a
    minute or forever.

    ``control`` raises the error in Tune's loop. If that does not end this process, a thread exits
    with the error's code. Nothing is lost, because the event log is on disk.
    """
    ended = threading.Event()
    if ray.is_initialized():  # reading the address would start Ray
        threading.Thread(
            target=_watch, args=(control, ended), name="ray-watch", daemon=True
        ).start()
    try:
        yield
    finally:
        ended.set()


def _watch(control: StopControl, ended: threading.Event) -> None:
    context = ray.get_runtime_context()
    this_node = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    server = context.gcs_address
    raylet = f"{this_node['NodeManagerAddress']}:{this_node['NodeManagerPort']}"
    limit = _SILENCE_S
    if not server.startswith(("127.", "localhost:")):
        limit = CUT_OFF_S
        remember_silent_nodes()
    last_answer = dict.fromkeys((raylet, server), time.monotonic())
    while time.monotonic() - min(last_answer.values()) <= limit:
        if ended.wait(_WATCH_S):
            return
        for address in (raylet, server):
            if listens(address):
                last_answer[address] = time.monotonic()
    daemon = f"control server at {server}"
    if last_answer[raylet] <= last_answer[server]:
        daemon = f"raylet at {raylet}"
    error = StorageError(
        f"Ray's {daemon} has died", str(control.folder.log), control.resume, code="ray-died"
    )
    control.ray_error = error
    if not ended.wait(_GRACE_S):
        print(error, file=sys.stderr)
        os._exit(error.exit_code)
