import socket
import threading
from contextlib import contextmanager

import pytest

from loptune.errors import ConfigError, MissingError
from sweep.cli import main
from sweep.trials import cluster
from sweep.trials.cluster import check_address
from tests.ports import quiet_port
from tests.refusals import refused
from tests.sweep.harness import write_space

SETTINGS = bytes(3) + b"\x04" + bytes(5)  # the frame that a gRPC server opens with


@contextmanager
def server(answer):
    """Answers every connection with some bytes, hangs up (empty bytes), or stays silent (None)."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        open_connections = []

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                if answer is not None:
                    connection.sendall(answer)
                    connection.close()
                open_connections.append(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_a_ray_client_is_refused():
    with refused("ray-client", ConfigError):
        check_address("ray://head:10001")
    check_address("auto")
    check_address(None)


@pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:port", "head:99999"])
def test_what_is_no_address_is_refused(address):
    with refused("cluster-address", ConfigError):
        check_address(address)


def test_a_server_that_speaks_as_ray_does_is_taken_for_a_cluster():
    with server(SETTINGS) as address:
        check_address(address)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None])
def test_another_server_is_not(answer, monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_LIMIT_S", 0.5)
    with server(answer) as address, refused("server-is-not-ray", MissingError):
        check_address(address)


def test_a_sweep_at_a_dead_address_ends_at_once_with_3(tmp_path, capsys):
    port = quiet_port()
    space = write_space(tmp_path / "space.yaml")
    assert (
        main(
            [
                "run",
                str(space),
                "--runs-dir",
                str(tmp_path / "runs"),
                "--address",
                f"127.0.0.1:{port}",
            ]
        )
        == 3
    )
    told = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in told and "[no-ray-cluster]" in told
    assert not (tmp_path / "runs").exists()


def test_a_reachable_cluster_without_token_is_named(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(
        cluster,
        "accepts_without_token",
        lambda host, port: asked.append(host) or host == "192.0.2.1",
    )
    for host in ("127.0.0.1", "192.0.2.1", "192.0.2.2"):
        cluster.warn_if_unauthenticated(host, 6379)
    assert asked == ["192.0.2.1", "192.0.2.2"]
    warned = capsys.readouterr().out
    assert warned.count("warning:") == warned.count("192.0.2.1:6379") == 1
