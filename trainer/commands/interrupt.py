"""Ctrl-C once: stop at the next step boundary. Twice: stop at once."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType


def graceful_stop(request_stop: Callable[[], None], announce: bool = True) -> AbstractContextManager[None]:
    """Call ``request_stop`` on the first SIGINT or SIGTERM, and say so; the second raises KeyboardInterrupt."""
    seen = 0

    def handle(received: signal.Signals) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            raise KeyboardInterrupt
        if announce:
            print("stopping after this step (again to stop at once)", file=sys.stderr, flush=True)
        request_stop()

    return on_interrupt(handle)


@contextmanager
def on_interrupt(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call ``handle`` on every SIGINT and SIGTERM inside the block."""

    def receive(number: int, frame: FrameType | None) -> None:
        handle(signal.Signals(number))

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
