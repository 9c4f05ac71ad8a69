"""What the processes of a test listen on."""

import contextlib
import ipaddress

import psutil


def listening(*roots: psutil.Process) -> set[tuple[str, str, int]]:
    """(process, address, port) of every listening TCP socket of the processes and all below
    them.
    """
    sockets = set()
    for root in roots:
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                for connection in process.net_connections("tcp"):
                    if connection.status == psutil.CONN_LISTEN:
                        sockets.add((process.name(), connection.laddr.ip, connection.laddr.port))
    return sockets


def open_to_others(sockets: set[tuple[str, str, int]]) -> set[tuple[str, str, int]]:
    """Those of the sockets that other machines can reach."""

    def is_loopback(address: str) -> bool:
        parsed = ipaddress.ip_address(address)
        mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
        return (mapped or parsed).is_loopback

    return {socket for socket in sockets if not is_loopback(socket[1])}
