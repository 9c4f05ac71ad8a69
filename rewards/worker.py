"""A scoring process: JSON lines in on stdin, JSON lines out on a descriptor of its own.

A line in holds texts and their answers: one of each, or as many as a function wants in one call. The line that
answers it holds their scores, or why there are none.

Started by ``rewards.sandbox`` as ``python -m rewards.worker SETTINGS``. It ends by itself when its parent is gone:
between completions it sees stdin close or its parent change; during one, a timer one second past the limit ends it
even inside native code that never returns to the interpreter.
"""

import json
import math
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from typing import Any

from rewards import combine_batch, minimum, prepare, wants_batches
from rewards.score import BatchRewardFunction, Score

_MIB = 1 << 20
_GRACE_S = 1.0  # the parent, which can tell why, should be the one to end a slow completion
_ORPHAN_CHECK_S = 2.0
_MESSAGE_CHARS = 500
_CLOCKS = ((signal.ITIMER_REAL, signal.SIGALRM), (signal.ITIMER_PROF, signal.SIGPROF))


def main() -> None:
    """Answer ``[texts, answers]`` lines until stdin ends."""
    settings = json.loads(sys.argv[1])
    requests, replies = _private_descriptors(settings["reply_fd"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Exact scores of honest answers never need more digits; this bounds int <-> str conversions.
    sys.set_int_max_str_digits(10_000)
    try:
        function = combine_batch(settings["functions"])
        batches = wants_batches(settings["functions"])
        prepare(settings["functions"])
    except Exception as error:
        _reply(replies, {"status": "refused", "message": _describe(error, settings["memory_mb"])})
        return
    _limit_memory(settings["memory_mb"])
    _reply(replies, {"status": "ready", "minimum": minimum(settings["functions"]), "batches": batches})
    for line in _lines(requests, settings["parent_pid"]):
        _start_clock(settings["timeout_s"])
        reply = _score(function, line, settings["memory_mb"])
        _stop_clock()
        _reply(replies, reply)


def _limit_memory(memory_mb: int) -> None:
    """Let scoring take so much address space beyond that of the imports, which may be gigabytes (torch)."""
    with open("/proc/self/statm") as sizes:
        taken = int(sizes.read().split()[0]) * resource.getpagesize()
    limit = taken + memory_mb * _MIB
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _private_descriptors(reply_fd: int) -> tuple[int, int]:
    """Move the protocol away from stdin and stdout, which reward functions may read and print to."""
    requests = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    for descriptor in (requests, reply_fd):
        os.set_inheritable(descriptor, False)
    return requests, reply_fd


def _lines(requests: int, parent_pid: int) -> Iterator[bytes]:
    buffer = b""
    while True:
        *lines, buffer = buffer.split(b"\n")
        yield from lines
        while not select.select([requests], [], [], _ORPHAN_CHECK_S)[0]:
            if os.getppid() != parent_pid:
                return
        received = os.read(requests, _MIB)
        if not received:
            return
        buffer += received


def _score(function: BatchRewardFunction, line: bytes, memory_mb: int) -> dict[str, Any]:
    try:
        texts, answers = json.loads(line)
        return {"status": "ok", "scores": [_as_json(score) for score in function(texts, answers)]}
    except MemoryError as error:
        return {"status": "memory", "message": _describe(error, memory_mb)}
    except Exception as error:
        return {"status": "error", "message": _describe(error, memory_mb)}


def _as_json(score: Score) -> dict[str, Any]:
    if not math.isfinite(score.reward):
        raise ValueError(f"the reward is {score.reward}")
    return {
        "reward": float(score.reward),
        "correct": bool(score.correct),
        "breakdown": {str(part): float(value) for part, value in score.breakdown.items()},
        "parsed": bool(score.parsed),
    }


def _describe(error: Exception, memory_mb: int) -> str:
    if isinstance(error, MemoryError):
        return f"out of memory (limit {memory_mb} MiB)"
    text = str(error)[:_MESSAGE_CHARS]
    return text if type(error) is ValueError else f"{type(error).__name__}: {text}"


def _start_clock(timeout_s: float) -> None:
    # CPU time as well, for a reward function may use the alarm for itself. Not RLIMIT_CPU: its clock and the one
    # that can be read drift apart by per cents, so that it would end honest work in a process hours old.
    for timer, signum in _CLOCKS:
        signal.signal(signum, signal.SIG_DFL)  # a reward function may have set a handler of its own
        signal.setitimer(timer, timeout_s + _GRACE_S)


def _stop_clock() -> None:
    for timer, _ in _CLOCKS:
        signal.setitimer(timer, 0)


def _reply(replies: int, content: dict[str, Any]) -> None:
    data = json.dumps(content).encode() + b"\n"
    while data:
        data = data[os.write(replies, data) :]


if __name__ == "__main__":
    main()
