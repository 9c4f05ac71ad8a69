import socket
import threading
from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError

from sweep.trials import nodes
from sweep.trials.nodes import (
    NodeLostError,
    WorkerLostError,
    is_lost_node,
    leave_if_files_missing,
    listens,
)
from tests.ports import quiet_port


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (None, False),
        (WorkerLostError("rank 1 died"), False),
        (NodeLostError("rank 1 died"), True),
        (RayActorError("on a node that lives", "killed for memory"), False),
        (RayActorError("on a node without a raylet", "the worker of the actor died"), True),
        (RayActorError("on a dead node", "the actor died because its node has died"), True),
        (RayActorError("on a node that Ray drains", "preempted", preempted=True), True),
    ],
)
def test_the_loss_of_a_node_is_told_from_a_failure(error, lost, monkeypatch):
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
        monkeypatch.setattr(nodes, "node_of", lambda actor: actor)
        assert is_lost_node(error) == lost


def test_a_node_that_was_silent_a_short_while_ago_is_lost(monkeypatch):
    error = RayActorError("on a node that is back", "the worker of the actor died")
    present = []
    noted = threading.Event()
    monkeypatch.setattr(nodes, "NOTICE_S", 0.5)
    monkeypatch.setattr(nodes, "_silent", {})
    monkeypatch.setattr(nodes.ray, "nodes", lambda: present)
    monkeypatch.setattr(nodes.ray, "is_initialized", lambda: not noted.is_set())
    monkeypatch.setattr(nodes, "_POLL_S", 0.05)
    monkeypatch.setattr(nodes, "node_of", lambda actor: actor)
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        address = {"NodeManagerAddress": "127.0.0.1", "Alive": True}
        node = {**address, "NodeID": "on a node that is back"}
        present[:] = [{**node, "NodeManagerPort": raylet.getsockname()[1]}]
        assert not is_lost_node(error)
        present[:] = [{**node, "NodeManagerPort": 1}]
        nodes.remember_silent_nodes()
        while not nodes._silent:
            noted.wait(0.01)
        noted.set()
        present[:] = [{**node, "NodeManagerPort": raylet.getsockname()[1]}]
        assert is_lost_node(error)
        nodes._silent[node["NodeID"]] -= nodes.RECENT_S
        assert not is_lost_node(error)


def test_a_busy_server_listens_and_a_dead_one_does_not():
    port = quiet_port()
    address = f"127.0.0.1:{port}"
    with socket.create_server(("127.0.0.1", port)):  # which never accepts or answers
        assert listens(address)
    assert not listens(address)


def test_a_node_without_the_files_leaves_the_cluster(tmp_path, monkeypatch):
    left = []
    client = SimpleNamespace(drain_node=lambda *arguments: left.append(arguments))
    context = SimpleNamespace(worker=SimpleNamespace(gcs_client=client), get_node_id=lambda: "n7")
    monkeypatch.setattr(nodes, "VISIBLE_WITHIN_S", 0.0)
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    monkeypatch.setattr(nodes.ray.util, "get_node_ip_address", lambda: "10.0.0.7")
    leave_if_files_missing([tmp_path])
    assert left == []
    with pytest.raises(NodeLostError, match=rf"10\.0\.0\.7 .*{tmp_path / 'runs'}"):
        leave_if_files_missing([tmp_path, tmp_path / "runs"])
    assert [(node, reason, deadline) for node, reason, _, deadline in left] == [("n7", 2, 0)]
