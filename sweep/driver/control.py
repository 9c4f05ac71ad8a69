"""Stopping a sweep: signals, budgets, the stop file and a dead Ray become one orderly end."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import ray
from ray import tune

from sweep.record.folder import request_stop
from sweep.record.sweep_record import SweepRecord
from sweep.search.trial_report import TrialReport
from sweep.trials.nodes import CUT_OFF_S, listens
from trainer.errors import StorageError
from trainer.shell.interrupt import on_interrupt

POLL_S = 0.5
_WATCH_S = 1.0
_SILENCE_S = 4.0  # without a connection until a daemon of this machine counts as dead
# for this process to end by itself: what waits for Ray inside of a call does not come back
_GRACE_S = 6.0


class StopControl(tune.Stopper):  # type: ignore[misc]
    """Asks all trials to stop at their next training step, once, for the first reason that comes
    up.

    Tune asks ``stop_all`` ten times a second. A trial that sees the stop file saves a checkpoint
    and ends; no new one is handed out; so the sweep ends by itself a training step later.
    """

    def __init__(self, sweep: SweepRecord, resume: str) -> None:
        self.reason: str | None = None
        self.interrupted = False
        self.problem: StorageError | None = None  # where the reason is a fault of the storage
        # set from outside where Ray has died: nothing can stop orderly
        self.lost: StorageError | None = None
        self.folder = sweep.folder
        self.resume = resume  # command to go on later
        self._limits = sweep.spec.limits
        self._gpus_per_trial = sweep.spec.resources.gpus_per_trial
        self._gpu_seconds = sweep.gpu_hours() * 3600
        self._halt: Callable[[], None] = lambda: None
        self._running: Callable[[], int] = lambda: 0
        self._started = self._polled = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its stopper; the callbacks belong to this process.
        return {**self.__dict__, "_halt": None, "_running": None}

    def attach(self, halt: Callable[[], None], running: Callable[[], int]) -> None:
        """Name what ends the search and what counts the running trials."""
        self._halt = halt
        self._running = running

    def request(self, reason: str, *, interrupted: bool) -> None:
        """Stop for this reason; later ones are ignored."""
        if self.reason is None:
            self.reason = reason
            self.interrupted = interrupted
            request_stop(self.folder)
            self._halt()

    def fail(self, problem: StorageError) -> None:
        """Stop because storage does not work: that is no result of any trial."""
        self.problem = self.problem or problem
        self.request("the sweep has stopped", interrupted=False)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Note what storage has interrupted; trials end by themselves."""
        fault = TrialReport.of(result).storage
        if fault is not None:
            self.fail(StorageError(*fault))
        return False

    def stop_all(self) -> bool:
        """Look at the clock, the budget, the stop file and the ledger.

        Raises:
            StorageError: the sweep's folder has disappeared, or Ray has died.
        """
        if self.lost is not None:
            raise self.lost
        now = time.monotonic()
        if now - self._polled >= POLL_S:
            self._gpu_seconds += (now - self._polled) * self._gpus_per_trial * self._running()
            self._polled = now
            self._poll(now)
        return self.reason is not None and self._running() == 0

    def check_folder(self) -> None:
        """Raise a StorageError if the sweep's folder, its ledger or its space is gone: a trial that
        cannot write is a consequence.
        """
        folder = self.folder
        parts = {"folder": folder.root, "ledger": folder.ledger, "search space": folder.space}
        for what, path in parts.items():
            if not path.exists():
                raise StorageError(
                    f"the {what} of sweep {folder.name} has disappeared",
                    str(path),
                    "put it back, then resume",
                )

    def _poll(self, now: float) -> None:
        self.check_folder()
        limits = self._limits
        if self.folder.stop.exists():
            self.request("asked to stop", interrupted=True)
        elif limits.time_budget_s is not None and now - self._started > limits.time_budget_s:
            self.request(
                f"the time budget of {limits.time_budget_s:g} s is spent", interrupted=False
            )
        elif limits.gpu_hours is not None and self._gpu_seconds > limits.gpu_hours * 3600:
            self.request(
                f"the budget of {limits.gpu_hours:g} GPU hours is spent", interrupted=False
            )


def orderly_signals(
    control: StopControl, show: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Stop at the next training step after the first SIGINT, SIGTERM or SIGHUP; at once, with
    KeyboardInterrupt, after the second.

    The first is answered with the command to go on: where the signal reaches Ray's processes too
    (the end of a batch job), Ray takes this process along before the sweep's last line.
    """

    def handle(received: signal.Signals) -> None:
        if control.reason is not None:
            raise KeyboardInterrupt
        control.request(f"received {received.name}", interrupted=True)
        later = f"To resume later: {control.resume}"
        show(f"stopping after the current training step; once more to stop at once. {later}")

    return on_interrupt(handle)


@contextmanager
def watched(control: StopControl) -> Iterator[None]:
    """Watch Ray within the block: end the sweep soon after Ray has died: its own calls wait a
    minute for it, or for ever.

    ``control`` raises the error in Tune's loop. Where that does not end this process, the thread
    here does, with the error's exit code; nothing is lost, for the ledger is on disk.
    """
    over = threading.Event()
    if ray.is_initialized():  # else to ask for its address would start one
        threading.Thread(target=_watch, args=(control, over), name="ray-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(control: StopControl, over: threading.Event) -> None:
    context = ray.get_runtime_context()
    this_node = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    server = context.gcs_address
    raylet = f"{this_node['NodeManagerAddress']}:{this_node['NodeManagerPort']}"
    limit = _SILENCE_S if server.startswith(("127.", "localhost:")) else CUT_OFF_S
    heard = dict.fromkeys((raylet, server), time.monotonic())
    while time.monotonic() - min(heard.values()) <= limit:
        if over.wait(_WATCH_S):
            return
        heard |= {address: time.monotonic() for address in heard if listens(address)}
    lost = (
        f"raylet at {raylet}" if heard[raylet] <= heard[server] else f"control server at {server}"
    )
    error = StorageError(f"Ray's {lost} has died", str(control.folder.log), control.resume)
    control.lost = error
    if not over.wait(_GRACE_S):
        print(error, file=sys.stderr)
        os._exit(error.exit_code)
