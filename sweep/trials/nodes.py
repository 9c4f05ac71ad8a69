"""Nodes come and go: one that does not see the sweep's files leaves, and a lost one is no failure of its trial."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from sweep.trials.lifeline import listens

VISIBLE_WITHIN_S = 5.0  # a new file on a network file system
NOTICE_S = 5.0  # of a machine that goes down, between its first process and its raylet


class WorkerLostError(RuntimeError):
    """A rank died, hung or could not be placed."""


class NodeLostError(WorkerLostError):
    """The node of a trial or rank is gone, or cannot be used."""


def missing_paths(paths: Sequence[Path]) -> list[Path]:
    """The paths that this machine does not see within some seconds."""
    deadline = time.monotonic() + VISIBLE_WITHIN_S
    while (missing := [path for path in paths if not path.exists()]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return missing


def leave_if_blind(paths: Sequence[Path]) -> None:
    """Take this node out of the cluster, with a NodeLostError, if it does not see one of the paths."""
    for path in missing_paths(paths):
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        context = ray.get_runtime_context()
        told = f"node {ray.util.get_node_ip_address()} does not see {path}; it leaves the cluster"
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")  # one that may not be refused
        context.worker.gcs_client.drain_node(context.get_node_id(), reason, told, 0)
        raise NodeLostError(f"{told}: mount it there, then `ray start` again")


def is_lost_node(error: Exception | None) -> bool:
    """Whether a trial or rank ended because of its node: lost, preempted or without the sweep's files."""
    if isinstance(error, RayActorError):
        return error.preempted or (error.actor_id is not None and _ends(_node_of(error.actor_id)))
    return isinstance(error, NodeLostError) or isinstance(getattr(error, "cause", None), NodeLostError)


def _node_of(actor: str) -> str:
    place = ray._private.state.actors(actor).get("Address", {})
    return str(place.get("NodeID", ""))


def _ends(node_id: str) -> bool:
    """Whether a node is dead, or its raylet stops to answer within some seconds: its other processes may end first.

    Ray's own verdict is not waited for: a dead raylet's comes later than the reports of its actors' deaths. A
    machine that vanishes without ending anything is dead to Ray before its actors are.
    """
    deadline = time.monotonic() + NOTICE_S
    while node_id and time.monotonic() < deadline:
        if not any(node["NodeID"] == node_id and answers(node) for node in ray.nodes()):
            return True
        time.sleep(0.2)
    return False


def answers(node: dict[str, Any]) -> bool:
    """Whether a node of `ray.nodes` is there: to Ray a lost one is alive for another half minute."""
    return node["Alive"] and listens(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}")


@contextmanager
def failures_end_attempts() -> Iterator[None]:
    """Within the block a failure ends an attempt of its trial, and Tune does not count a lost node as one."""
    from ray.tune.experiment import Trial  # which ranks do not need

    original = Trial.handle_error

    def handle_error(trial: Any, exc: Any = None) -> None:
        before = trial.run_metadata.num_failures
        original(trial, exc)
        trial.config["attempt"] += 1  # of the process that tries it again, which shuts out this one
        if is_lost_node(exc):
            trial.run_metadata.num_failures = before

    Trial.handle_error = handle_error
    try:
        yield
    finally:
        Trial.handle_error = original
