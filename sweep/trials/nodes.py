"""Nodes come and go: one that does not see the sweep's files leaves, and a lost one is no failure
of its trial.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from sweep.trials.internals import leave_cluster, node_of

# less than the 65 s after which Ray counts a node as lost, and its trials begin again elsewhere
CUT_OFF_S = 40.0
_POLL_S = 5.0
_CONNECT_S = 2.0  # a busy server is connected to all the same: its machine's kernel does that
VISIBLE_WITHIN_S = 5.0  # a new file on a network file system
NOTICE_S = 5.0  # of a machine that goes down, between its first process and its raylet


class WorkerLostError(RuntimeError):
    """A rank died, hung or could not be placed."""


class NodeLostError(WorkerLostError):
    """The node of a trial or rank is gone, or cannot be used."""


def missing_paths(paths: Sequence[Path]) -> list[Path]:
    """Return the paths that this machine does not see within some seconds."""
    deadline = time.monotonic() + VISIBLE_WITHIN_S
    while (
        missing := [path for path in paths if not path.exists()]
    ) and time.monotonic() < deadline:
        time.sleep(0.2)
    return missing


def leave_if_blind(paths: Sequence[Path]) -> None:
    """Take this node out of the cluster, with a NodeLostError, if it does not see one of
    the paths.
    """
    for path in missing_paths(paths):
        reason = f"node {ray.util.get_node_ip_address()} does not see {path}; it leaves the cluster"
        leave_cluster(reason)
        raise NodeLostError(f"{reason}: mount it there, then `ray start` again")


def is_lost_node(error: Exception | None) -> bool:
    """Return whether a trial or rank ended because of its node: lost, preempted or without the
    sweep's files.
    """
    if isinstance(error, RayActorError):
        return error.preempted or (error.actor_id is not None and _ends(node_of(error.actor_id)))
    return isinstance(error, NodeLostError) or isinstance(
        getattr(error, "cause", None), NodeLostError
    )


def _ends(node_id: str) -> bool:
    """Return whether a node is dead, or its raylet stops to answer within some seconds: its other
    processes may end first.

    Ray's own verdict is not waited for: a dead raylet's comes later than the reports of its actors'
    deaths. A machine that vanishes without ending anything is dead to Ray before its actors are.
    """
    deadline = time.monotonic() + NOTICE_S
    while node_id and time.monotonic() < deadline:
        if not any(node["NodeID"] == node_id and answers(node) for node in ray.nodes()):
            return True
        time.sleep(0.2)
    return False


def answers(node: dict[str, Any]) -> bool:
    """Return whether a node of `ray.nodes` is there: to Ray a lost one is alive for another half
    minute.
    """
    return node["Alive"] and listens(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")


def listens(address: str) -> bool:
    """Return whether somebody accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=_CONNECT_S):
        return True
    return False


def end_when_cut_off(address: str) -> None:
    """End this process once the server at HOST:PORT has been out of reach for
    `CUT_OFF_S`.
    """

    def watch() -> None:
        heard = time.monotonic()
        while time.monotonic() - heard <= CUT_OFF_S:
            time.sleep(_POLL_S)
            heard = time.monotonic() if listens(address) else heard
        print(f"process {os.getpid()} ends: Ray at {address} is out of reach", file=sys.stderr)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
