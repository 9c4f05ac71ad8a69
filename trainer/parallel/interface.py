"""The network interface and the port by which processes are reached."""

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

import psutil

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"


def free_port() -> int:
    """Find a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def interface_towards_urls(urls: Sequence[str]) -> str:
    """Return the interface of the route to the first URL that is not loopback; the loopback one
    where all are.

    NCCL chooses its interface once in the life of a process. Ranks of one node that send weights to
    a vLLM server on another one need the interface of that route from the start.
    """
    for url in urls:
        try:
            address = own_address_towards(url)
        except OSError:  # no such host, or no way to it: the engine says so when it connects
            continue
        if not address.startswith("127."):
            return next(
                name
                for name, addresses in psutil.net_if_addrs().items()
                if any(other.address == address for other in addresses)
            )
    return LOOPBACK_INTERFACE


def own_address_towards(url: str) -> str:
    """Return the address of this machine that a server's machine would answer to."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port or 80))  # sends nothing: asks for the route
        address: str = probe.getsockname()[0]
        return address
