"""Ray's control server as the sign that a process still belongs to its cluster."""

import os
import socket
import sys
import threading
import time
from contextlib import suppress

CUT_OFF_S = 40.0  # less than the 65 s after which Ray counts a node as lost, and its trials begin again elsewhere
_POLL_S = 5.0
_CONNECT_S = 2.0  # a busy server is connected to all the same: its machine's kernel does that


def listens(address: str) -> bool:
    """Whether somebody accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=_CONNECT_S):
        return True
    return False


def end_when_cut_off(address: str) -> None:
    """From now on end this process once the server at HOST:PORT has been out of reach for `CUT_OFF_S`."""

    def watch() -> None:
        heard = time.monotonic()
        while time.monotonic() - heard <= CUT_OFF_S:
            time.sleep(_POLL_S)
            heard = time.monotonic() if listens(address) else heard
        print(f"process {os.getpid()} ends: Ray at {address} is out of reach", file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
