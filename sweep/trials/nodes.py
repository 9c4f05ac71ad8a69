"""Cluster nodes that come and go: a node without the sweep's files leaves the cluster, and losing a
node does not count as a trial's failure.
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

# less than the 65 s after which Ray declares a node dead and its trials restart elsewhere
CUT_OFF_S = 40.0
_POLL_S = 5.0
# enough even for a busy server, because the kernel completes the connection
_CONNECT_S = 2.0
VISIBLE_WITHIN_S = 5.0  # time for a new file to appear on a network file system
# time between the exits of the first and the last process (the raylet) when a machine shuts down
NOTICE_S = 5.0
# A node's processes exit when it is cut off (`exit_when_disconnected`), and Ray reports that once
# the node is back: an exit this soon after a silence is attributed to the connection.
RECENT_S = 60.0

# node id -> last time without an answer [seconds of the monotonic clock]
_silent: dict[str, float] = {}


class WorkerLostError(RuntimeError):
    """A rank died, hung, could not be placed, or is at another step than the other ranks."""


class NodeLostError(WorkerLostError):
    """The node of a trial or rank is missing, or cannot be used."""


def missing_paths(paths: Sequence[Path]) -> list[Path]:
    """Return the paths that do not appear on this machine within a few seconds."""
    deadline = time.monotonic() + VISIBLE_WITHIN_S
    while True:
        missing = [path for path in paths if not path.exists()]
        if not missing or time.monotonic() >= deadline:
            return missing
        time.sleep(0.2)


def leave_if_files_missing(paths: Sequence[Path]) -> None:
    """Remove this node from the cluster and raise NodeLostError if it cannot see one of the
    paths.
    """
    for path in missing_paths(paths):
        reason = f"node {ray.util.get_node_ip_address()} cannot see {path} and leaves the cluster"
        leave_cluster(reason)
        raise NodeLostError(f"{reason}: mount it there, then `ray start` again")


def is_lost_node(error: Exception | None) -> bool:
    """Return whether a trial or rank ended because of its node: lost, preempted or without the
    sweep's files.
    """
    if isinstance(error, RayActorError):
        if error.preempted:
            return True
        node_id = node_of(error.actor_id) if error.actor_id is not None else ""
        return _was_silent(node_id) or _is_dying(node_id)
    return isinstance(error, NodeLostError) or isinstance(
        getattr(error, "cause", None), NodeLostError
    )


def remember_silent_nodes() -> None:
    """Start recording which nodes do not answer. A node whose connection is lost for less than a
    minute is back before Ray notices, but its trials have exited: without this record, they would
    count as failures.
    """

    def watch() -> None:
        while ray.is_initialized():
            # errors are ignored: while Ray shuts down, it cannot list its nodes
            with suppress(Exception):
                for node in ray.nodes():
                    if node["Alive"] and not is_reachable(node):
                        _silent[node["NodeID"]] = time.monotonic()
            time.sleep(_POLL_S)

    threading.Thread(target=watch, name="silent-nodes", daemon=True).start()


def _was_silent(node_id: str) -> bool:
    """Return whether a node recently did not answer."""
    return node_id in _silent and time.monotonic() - _silent[node_id] < RECENT_S


def _is_dying(node_id: str) -> bool:
    """Return whether a node is dead or its raylet stops answering within a few seconds; its other
    processes may end first.

    This does not wait for Ray to declare the node dead, which comes after its actors' deaths are
    reported. If a machine vanishes silently, Ray declares it dead before its actors.
    """
    deadline = time.monotonic() + NOTICE_S
    while node_id and time.monotonic() < deadline:
        if not any(node["NodeID"] == node_id and is_reachable(node) for node in ray.nodes()):
            return True
        time.sleep(0.2)
    return False


def is_reachable(node: dict[str, Any]) -> bool:
    """Return whether a node of `ray.nodes` is reachable: Ray lists a lost node as alive for another
    half minute.
    """
    return node["Alive"] and listens(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")


def listens(address: str) -> bool:
    """Return whether something accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=_CONNECT_S):
        return True
    return False


def exit_when_disconnected(address: str) -> None:
    """Exit this process after the server at HOST:PORT has been unreachable for `CUT_OFF_S`."""

    def watch() -> None:
        last_answer = time.monotonic()
        while time.monotonic() - last_answer <= CUT_OFF_S:
            time.sleep(_POLL_S)
            last_answer = time.monotonic() if listens(address) else last_answer
        print(f"process {os.getpid()} exits: Ray at {address} is unreachable", file=sys.stderr)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
