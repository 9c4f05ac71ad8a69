"""Ports for servers of tests, which start seconds later, end and start again."""

import os
import random
import socket
from contextlib import suppress

# Below those that the system gives to whoever asks for any, a thousand for each process of pytest.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_FIRST = 20_000 + 1_000 * (_WORKER % 12)


def quiet_port() -> int:
    """Return a port on which nobody listens, and that the system gives to nobody meanwhile."""
    while True:
        port = _FIRST + random.SystemRandom().randrange(1_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
