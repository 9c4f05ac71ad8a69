"""Ctrl-C, or a closed terminal, once: stop at the next step boundary. Twice: stop at once."""

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
    """Call ``request_stop`` on the first signal of `on_interrupt`; the second raises
    KeyboardInterrupt.
    """
    seen = 0

    def handle(received: signal.Signals) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            raise KeyboardInterrupt
        if announce:
            print("stopping after this step (again to stop at once)", file=sys.stderr)
        request_stop()

    return on_interrupt(handle)


@contextmanager
def unhurried() -> Iterator[None]:
    """Hold Ctrl-C back while modules are imported, inside which it may come out as another error.

    Raises:
        KeyboardInterrupt: after the block, if there was one inside it; a second ends the process at
            once.
    """
    seen = 0

    def handle(received: signal.Signals) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            os._exit(INTERRUPTED)
        print("stopping (again to stop at once)", file=sys.stderr)

    if threading.current_thread() is not threading.main_thread():  # which alone receives signals
        yield
        return
    with on_interrupt(handle):
        yield
    if seen:
        raise KeyboardInterrupt


@contextmanager
def on_interrupt(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call ``handle`` on every SIGINT, SIGTERM and SIGHUP inside the block; `nohup` keeps a SIGHUP
    away.
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
    """Send standard output and error nowhere where their terminal has closed: writing to it would
    raise.
    """
    with open(os.devnull, "w") as nowhere:
        for descriptor in (1, 2):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                os.dup2(nowhere.fileno(), descriptor)
