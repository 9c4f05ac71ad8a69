"""CPU time and memory limits for untrusted code and data."""

import contextlib
import gc
import resource
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

_RETRY_S = 0.1


class _OutOfTime(BaseException):
    """Raised when the time limit expires. Derives from BaseException because sympy catches
    Exception.
    """


@contextlib.contextmanager
def cpu_time_limit(limit_s: float) -> Iterator[None]:
    """Limit the CPU time of a block. Has no effect outside the main thread, because only the main
    thread receives signals.

    Only the CPU time of this thread counts. Garbage collection is disabled inside the block,
    because it visits every object of the process.

    Raises:
        TimeoutError: the block uses more than ``limit_s`` seconds of CPU time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    end_s = time.thread_time() + limit_s

    def stop(*_: Any) -> None:
        left_s = end_s - time.thread_time()
        if left_s > 0:  # the timer also counts the CPU time of other threads
            signal.setitimer(signal.ITIMER_PROF, left_s)
            return
        # fire again in case something swallows the exception, such as the interpreter in a callback
        signal.setitimer(signal.ITIMER_PROF, _RETRY_S)
        raise _OutOfTime

    collects_garbage = gc.isenabled()
    gc.disable()
    previous = signal.signal(signal.SIGPROF, stop)
    try:
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        yield
    except _OutOfTime:
        raise TimeoutError(f"took more than {limit_s:.2g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
        if collects_garbage:
            gc.enable()


@contextlib.contextmanager
def memory(mebibytes: int) -> Iterator[None]:
    """Limit the address space [MiB] that a block may add to the process; allocations beyond that
    raise MemoryError.
    """
    previous = limit_memory(mebibytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, previous)


def limit_memory(mebibytes: int) -> tuple[int, int]:
    """Limit the address space [MiB] that the process may add to its current size, which can be
    gigabytes with torch. Return the previous soft and hard limits [bytes].
    """
    previous = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="utf-8") as sizes:
        taken = int(sizes.read().split()[0]) * resource.getpagesize()
    limits = [limit for limit in previous if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([taken + mebibytes * 2**20, *limits]), previous[1]))
    return previous
