"""Ctrl-C once: stop at the next step boundary. Twice: stop at once."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def graceful_stop(request_stop: Callable[[], None], announce: bool = True) -> Iterator[None]:
    """Call ``request_stop`` on the first SIGINT or SIGTERM, and say so; the second raises KeyboardInterrupt."""
    seen = 0

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            raise KeyboardInterrupt
        if announce:
            print("stopping after this step (again to stop at once)", file=sys.stderr, flush=True)
        request_stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
