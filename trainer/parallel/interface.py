"""Network interface and port selection."""

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

import psutil

LOOPBACK = "127.0.0.1"
LOOPBACK_INTERFACE = "lo"


def free_port() -> int:
    """Return a free loopback port."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
    return port


def interface_for_urls(urls: Sequence[str]) -> str:
    """Return the network interface that routes to the first non-loopback URL, or the loopback
    interface if there is none.

    NCCL picks its interface once per process. Ranks of one node that send weights to a vLLM server
    on another node need that route's interface from the start.
    """
    for url in urls:
        try:
            address = local_address_for(url)
        except OSError:  # unknown host or no route: the engine reports it when it connects
            continue
        if not address.startswith("127."):
            return _interface_with(address)
    return LOOPBACK_INTERFACE


def _interface_with(address: str) -> str:
    """Return the name of the interface that has this address."""
    for name, addresses in psutil.net_if_addrs().items():
        for candidate in addresses:
            if candidate.address == address:
                return name
    raise AssertionError(f"no interface has the address {address} of this machine")


def local_address_for(url: str) -> str:
    """Return the local address that is used to reach the URL's host.

    Raises:
        OSError: unknown host, or no route to it.
    """
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port or 80))  # sends nothing; only resolves the route
        address: str = probe.getsockname()[0]
        return address
