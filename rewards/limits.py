"""Limits of processor time and memory for code and data that strangers wrote."""

import contextlib
import gc
import resource
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

_AGAIN_S = 0.1


class _OutOfTime(BaseException):
    """End of a time limit; no Exception, because sympy catches these."""


@contextlib.contextmanager
def processor_time(limit_s: float) -> Iterator[None]:
    """Limit the block's processor time; without effect outside of the main thread, which alone
    receives signals.

    The time of other threads does not count, nor does collecting garbage, which walks through all
    objects of the process: it waits for the end of the block.

    Raises:
        TimeoutError: the block takes longer.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    end_s = time.thread_time() + limit_s

    def stop(*_: Any) -> None:
        left_s = end_s - time.thread_time()
        if left_s > 0:  # the timer counts other threads, too
            signal.setitimer(signal.ITIMER_PROF, left_s)
            return
        # should anything catch the exception, such as the interpreter in a callback
        signal.setitimer(signal.ITIMER_PROF, _AGAIN_S)
        raise _OutOfTime

    collects_garbage = gc.isenabled()
    gc.disable()
    before = signal.signal(signal.SIGPROF, stop)
    try:
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        yield
    except _OutOfTime:
        raise TimeoutError(f"took more than {limit_s:.2g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        if collects_garbage:
            gc.enable()


@contextlib.contextmanager
def memory(mebibytes: int) -> Iterator[None]:
    """Let a block take so much address space beyond what the process has; MemoryError beyond
    that.
    """
    before = limit_memory(mebibytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def limit_memory(mebibytes: int) -> tuple[int, int]:
    """Let the process take so much address space beyond what it has, which may be gigabytes
    (torch). Returns the limits of before.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as sizes:
        taken = int(sizes.read().split()[0]) * resource.getpagesize()
    limits = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([taken + mebibytes * 2**20, *limits]), before[1]))
    return before
