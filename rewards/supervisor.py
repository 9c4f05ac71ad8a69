"""Kill a process together with all its descendants, including detached ones."""

import ctypes
import os
import resource
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

# options of prctl(2)
_SET_CHILD_SUBREAPER = 36
_SET_PARENT_DEATH_SIGNAL = 1
_OWNER_CHECK_S = 2.0
_LINGER_CHECK_S = 0.1


def supervise(lifeline: int, allow_linger: Callable[[], bool] = lambda: False) -> None:
    """Fork; the child returns, and this process becomes its supervisor. The supervisor kills all
    remaining descendants when the child exits, then exits with the child's status.

    The supervisor is a child subreaper: the kernel reparents orphaned descendants to it, so neither
    a new session or process group nor the death of a parent lets a process escape. The child is
    killed when the other end of the lifeline is closed or the owner process dies. The lifeline is
    the read end of a pipe to which nothing is written. While ``allow_linger()`` is true after the
    child's exit, its descendants in this process group may finish on their own.
    """
    owner = os.getppid()
    system = ctypes.CDLL(None)
    system.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    deaths, signal_read = os.pipe()
    os.set_blocking(signal_read, False)
    signal.set_wakeup_fd(signal_read)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        system.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        for descriptor in (deaths, signal_read, lifeline):
            os.close(descriptor)
        return
    status = 1 << 8
    try:
        _close_all_but(deaths, signal_read, lifeline)
        _wait(child, deaths, lifeline, owner)
        while allow_linger() and _others_run(child) and os.getppid() == owner:
            if select.select([lifeline], [], [], _LINGER_CHECK_S)[0]:
                break
        status = _kill_all(child)
    finally:
        _exit_like(status)


def _wait(child: int, deaths: int, lifeline: int, owner: int) -> None:
    while True:
        ready = select.select([deaths, lifeline], [], [], _OWNER_CHECK_S)[0]
        if lifeline in ready or os.getppid() != owner:
            return
        if deaths in ready:
            os.read(deaths, 4096)
            while (
                dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            ) is not None:
                if dead.si_pid == child:
                    return
                os.waitpid(dead.si_pid, 0)


def _others_run(child: int) -> bool:
    """Return whether any other child in this process group is still running."""
    group = [pid for pid in _children() if pid != child and os.getpgid(pid) == os.getpgrp()]
    running = [os.waitpid(pid, os.WNOHANG)[0] == 0 for pid in group]
    return any(running)


def _kill_all(child: int) -> int:
    """Kill children until none are left; the children of killed processes are reparented to this
    process. Return the wait status of ``child``.
    """
    status = 0
    while True:
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            ended, its_status = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if ended == child:
            status = its_status


def _children() -> Iterator[int]:
    me = str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                if stat.read().rpartition(b")")[2].split()[1].decode() == me:
                    yield int(name)


def _close_all_but(*kept: int) -> None:
    # Keep no copy of the child's pipes, so that their readers see EOF when the child closes them.
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in (2, *kept):
            with suppress(OSError):
                os.close(descriptor)


def _exit_like(status: int) -> None:
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler to reset
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))
