"""Noticing that Ray itself has died: its own calls wait a minute for it, or for ever."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil
import ray
from ray._private import worker

from sweep.driver.control import StopControl
from sweep.trials.lifeline import CUT_OFF_S, listens
from trainer.errors import StorageError

POLL_S = 1.0
_SILENCE_S = 4.0  # without a connection until the control server of this machine counts as dead
_GRACE_S = 6.0  # for this process to end by itself: what waits for Ray inside of a call does not come back


@contextmanager
def watched(control: StopControl) -> Iterator[Callable[[], None]]:
    """Once the yielded function is called, end the sweep soon after a Ray daemon dies.

    ``control`` raises the error in Tune's loop. Where that does not end this process, the thread here does, with
    the error's exit code; nothing is lost, for the ledger is on disk.
    """
    over = threading.Event()

    def begin() -> None:
        if ray.is_initialized():  # else to ask for its address would start one
            address = ray.get_runtime_context().gcs_address
            threading.Thread(target=_watch, args=(control, address, over), name="ray-watch", daemon=True).start()

    try:
        yield begin
    finally:
        over.set()


def _watch(control: StopControl, address: str, over: threading.Event) -> None:
    limit = _SILENCE_S if address.startswith(("127.", "localhost:")) else CUT_OFF_S
    raylet = _own_raylet()
    heard = time.monotonic()
    while not over.wait(POLL_S):
        lost = "" if raylet is None or _lives(raylet) else f"raylet, process {raylet.pid},"
        if listens(address):
            heard = time.monotonic()
        elif time.monotonic() - heard > limit:
            lost = lost or f"control server at {address}"
        if lost:
            break
    else:
        return
    error = StorageError(f"Ray's {lost} has died", str(control.folder.log), control.resume)
    control.lost = error
    if not over.wait(_GRACE_S):
        print(error, file=sys.stderr, flush=True)
        os._exit(error.exit_code)


def _own_raylet() -> psutil.Process | None:
    """The raylet on this machine that this process is connected to; None where it cannot be told."""
    node = worker._global_node
    path = None if node is None else node.raylet_socket_name
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.name() == "raylet" and path is not None and path in " ".join(process.cmdline()):
                return process
    return None


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
