"""Signal handling: the first Ctrl-C (or closed terminal) stops at the next step boundary, the
second stops immediately.
"""

import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from trainer.errors import INTERRUPTED


def graceful_stop(
    request_stop: Callable[[], None], announce: bool = True
) -> AbstractContextManager[None]:
    """Context that calls ``request_stop`` on the first interrupt and raises KeyboardInterrupt on
    the second.
    """
    seen = 0

    def handle(received: signal.Signals) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            raise KeyboardInterrupt
        if announce:
            print(
                "stopping after this step (press Ctrl-C again to stop immediately)", file=sys.stderr
            )
        request_stop()

    return on_interrupt(handle)


@contextmanager
def unhurried() -> Iterator[None]:
    """Defer Ctrl-C during imports, where it may surface as an unrelated error.

    Raises:
        KeyboardInterrupt: at the end of the block, if Ctrl-C was pressed inside it. A second Ctrl-C
        exits immediately.
    """
    seen = 0

    def handle(received: signal.Signals) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            os._exit(INTERRUPTED)
        print("stopping (press Ctrl-C again to stop immediately)", file=sys.stderr)

    # only the main thread receives signals
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with on_interrupt(handle):
        yield
    if seen:
        raise KeyboardInterrupt


@contextmanager
def on_interrupt(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Context that calls ``handle`` on every SIGINT, SIGTERM and SIGHUP. SIGHUP stays ignored under
    `nohup`.
    """

    def receive(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _redirect_closed_terminal()
        handle(signal.Signals(number))

    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    before = {number: signal.signal(number, receive) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _redirect_closed_terminal() -> None:
    """Redirect stdout and stderr to /dev/null if their terminal has closed, because writing would
    raise.
    """
    with open(os.devnull, "w") as nowhere:
        for descriptor in (1, 2):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                os.dup2(nowhere.fileno(), descriptor)
