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

from loptune.errors import INTERRUPTED, warning_text
from loptune.terminal.waiting import waiting

_TORCHRUN_LIMIT_S = 30  # torch's default
_SAFE_FRACTION = 0.5  # fraction of the limit that a step may take; the rest is for the checkpoint


def shutdown_limit() -> float | None:
    """Return how long after a signal the launcher kills this rank [s], or None if no launcher does.

    torchrun and `accelerate launch` take this limit from ``--shutdown-timeout`` or
    TORCH_ELASTIC_SHUTDOWN_TIMEOUT.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    import psutil  # needed only under a launcher

    words = psutil.Process(os.getppid()).cmdline()
    for index, word in enumerate(words):
        flag, _, value = word.replace("_", "-").partition("=")
        if flag == "--shutdown-timeout":
            return float(value or words[index + 1])
    return float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _TORCHRUN_LIMIT_S))


def shutdown_warning(step_s: float) -> str | None:
    """Return a warning if the launcher may kill this rank before a step of ``step_s`` seconds and
    its checkpoint are complete, or None.
    """
    limit = shutdown_limit()
    if limit is None or step_s <= _SAFE_FRACTION * limit:
        return None
    return warning_text(
        f"a step takes {step_s:.0f} s, and the launcher kills its ranks {limit:.0f} s after Ctrl-C "
        "or SIGTERM: a stop may lose the steps since the last checkpoint",
        "torchrun or accelerate launch",
        "start with TORCH_ELASTIC_SHUTDOWN_TIMEOUT=900, or torchrun --shutdown-timeout 900",
    )


def graceful_stop(
    request_stop: Callable[[], None], announce: bool = True
) -> AbstractContextManager[None]:
    """Call ``request_stop`` on the first interrupt in the block, and raise KeyboardInterrupt on the
    second. With ``announce``, the first one prints a note to stderr.
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
def defer_interrupt() -> Iterator[None]:
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

    with on_interrupt(handle), waiting("loading libraries"):
        yield
    if seen:
        raise KeyboardInterrupt


@contextmanager
def on_interrupt(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call ``handle`` on every SIGINT, SIGTERM and SIGHUP in the block. SIGHUP stays ignored under
    `nohup`.

    Has no effect outside the main thread: Python delivers signals only to the main thread, where
    the calling program keeps its own handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

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
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        for descriptor in (1, 2):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
                os.dup2(nowhere.fileno(), descriptor)
