import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError
from ray.tune.experiment import Trial

from sweep.trials import nodes
from sweep.trials.nodes import NodeLostError, WorkerLostError, failures_end_attempts, leave_if_blind


@pytest.mark.parametrize(
    ("error", "counted"),
    [
        (WorkerLostError("rank 1 died"), 1),
        (NodeLostError("rank 1 died"), 0),
        (RayActorError("on a node that lives", "killed for memory"), 1),
        (RayActorError("on a node without a raylet", "the worker of the actor died"), 0),
        (RayActorError("on a dead node", "the actor died because its node has died"), 0),
        (RayActorError("on a node that Ray drains", "preempted", preempted=True), 0),
    ],
)
def test_the_loss_of_a_node_is_no_failure_of_its_trial(
    error: Exception, counted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "NOTICE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        port = raylet.getsockname()[1]
        node = {"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": port, "Alive": True}
        present = [
            {**node, "NodeID": "on a node that lives"},
            {**node, "NodeID": "on a node without a raylet", "NodeManagerPort": 1},
            {**node, "NodeID": "on a dead node", "Alive": False},
        ]
        monkeypatch.setattr(nodes.ray, "nodes", lambda: present)
        monkeypatch.setattr(nodes, "_node_of", lambda actor: actor)
        data = SimpleNamespace(num_failures=0, invalidate_cache=lambda: None)
        trial = SimpleNamespace(is_restoring=False, local_path=None, run_metadata=data, config={"attempt": 1})
        trial._handle_ray_actor_error = lambda exc: Trial._handle_ray_actor_error(trial, exc)
        with failures_end_attempts():
            Trial.handle_error(trial, error)
    assert (data.num_failures, trial.config["attempt"]) == (counted, 2)
    Trial.handle_error(trial, error)
    assert data.num_failures == counted + (not getattr(error, "preempted", False))  # Ray's own rule


def test_a_node_without_the_files_leaves_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[tuple[object, ...]] = []
    client = SimpleNamespace(drain_node=lambda *arguments: left.append(arguments))
    context = SimpleNamespace(worker=SimpleNamespace(gcs_client=client), get_node_id=lambda: "n7")
    monkeypatch.setattr(nodes, "VISIBLE_WITHIN_S", 0.0)
    monkeypatch.setattr(nodes.ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(nodes.ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    leave_if_blind([tmp_path])
    assert left == []
    with pytest.raises(NodeLostError, match=r"node 10.0.0.7 does not see .*/runs; it leaves the cluster"):
        leave_if_blind([tmp_path, tmp_path / "runs"])
    assert [(node, reason, deadline) for node, reason, _, deadline in left] == [("n7", 2, 0)]
