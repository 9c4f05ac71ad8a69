"""Ports for servers of tests, which start seconds later, end and start again."""

import random
import socket
from contextlib import suppress

_PORTS = (20_000, 32_000)  # below those that the system gives to whoever asks for any


def quiet_port() -> int:
    """Return a port on which nobody listens, and that the system gives to nobody meanwhile."""
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
