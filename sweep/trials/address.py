"""The address of a Ray cluster: whether somebody answers there, asked before Ray does, which takes minutes."""

import contextlib
import socket

from trainer.errors import ConfigError, MissingError

ANSWER_LIMIT_S = 5.0

# What a client of HTTP/2 says first (RFC 9113, section 3.4), and an empty SETTINGS frame behind it.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
_SETTINGS_FRAME = 4  # type of the frame that a server of HTTP/2, such as gRPC's, answers with


def check_address(address: str | None) -> None:
    """Refuse an address a sweep cannot be driven through, or at which no cluster answers.

    Raises:
        ConfigError: not HOST:PORT or auto; or a Ray client's, where the sweep would run out of sight on the head.
        MissingError: nobody answers at HOST:PORT within five seconds, or somebody else does.
    """
    if address is None or address == "auto":
        return
    if address.startswith("ray://"):
        raise ConfigError(
            "a sweep is not driven through a Ray client",
            f"--address {address}",
            "type it on a node of the cluster with --address auto, or send it there with `ray job submit` "
            "(docs/cluster.md)",
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ConfigError("not an address of a cluster", f"--address {address}", "write auto, or HOST:PORT")
    check_cluster(host.strip("[]"), int(port))


def check_cluster(host: str, port: int) -> None:
    """Refuse a place where no Ray cluster answers.

    Raises:
        MissingError: says whether nobody or somebody else answers.
    """
    try:
        with socket.create_connection((host, port), timeout=ANSWER_LIMIT_S) as connection:
            connection.sendall(_PREFACE)
            header = b""
            with contextlib.suppress(OSError):  # silence, or a hang-up: not a cluster
                header = connection.recv(9)
    except OSError as error:
        raise _missing(host, port, f"nobody answers: {error.strerror or error}") from None
    if len(header) < 4 or header[3] != _SETTINGS_FRAME:
        raise _missing(host, port, "what answers there is not Ray")


def _missing(host: str, port: int, reason: str) -> MissingError:
    return MissingError(
        f"no Ray cluster at {host}:{port}: {reason}",
        "--address",
        "start one with `ray start --head`, or leave out --address to run on this machine",
    )
