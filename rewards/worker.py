"""A scoring worker process: reads pickled requests from stdin and writes JSON lines to a private
descriptor.

A request has texts, answers and dataset columns, for one completion or for a batch. It is pickled,
because JSON would turn decimals, dates and bytes of the data into text; only the trusted parent
writes requests. Replies are JSON, because model-written code could forge them, and unpickling a
forged reply would execute code. The reply has the scores or error messages, and echoes the
request's token. Without the token, output that a reward function or model-written code writes to
the descriptor is not accepted as a reply.

`rewards.sandbox` starts a worker as ``python -m rewards.worker SETTINGS``. `rewards.supervisor` can
kill it with all its descendants, even if native code never returns to the interpreter.
"""

import errno
import json
import os
import pickle
import resource
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from rewards import any_batch_function, columns, combine_batch, minimum, prepare
from rewards.errors import CodedValueError
from rewards.limits import limit_memory
from rewards.score import BatchRewardFunction, FailureCause, Score
from rewards.supervisor import supervise
from rewards.withheld import WithheldVariables

_MESSAGE_CHARS = 500
MAX_REPLY_BYTES = 1 << 20
_LENGTH = struct.Struct(">Q")  # length of a pickled request [bytes]
MAX_REWARD = 1e15  # keeps sums of squared rewards far below the maximum of float32


def main() -> None:
    """Serve ``[token, texts, answers, rows]`` requests until stdin closes."""
    settings = json.loads(sys.argv[1])
    memory_mb = settings["memory_mb"]
    withheld = WithheldVariables(settings["withheld"])
    supervise(settings["lifeline_fd"])
    requests, replies = _private_descriptors()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Bounds int <-> str conversions; legitimate answers never need more digits.
    sys.set_int_max_str_digits(10_000)
    try:
        function = combine_batch(settings["functions"])
        batches = any_batch_function(settings["functions"])
        used_columns = columns(settings["functions"])
        prepare(settings["functions"])
        minimum_score = minimum(settings["functions"])
    except Exception as error:
        refusal = {"status": "refused", **_failure(error, memory_mb, withheld)}
        _reply(replies, "", refusal)
        return
    limit_memory(memory_mb)
    _reply(
        replies,
        "",
        {
            "status": "ready",
            "minimum": minimum_score,
            "batches": batches,
            "columns": used_columns,
            "withheld": withheld.asked_for(),
        },
    )
    with os.fdopen(requests, "rb") as stream:
        while (request := read_request(stream)) is not None:
            token, *problems = request
            _reply(replies, token, _score(function, problems, memory_mb, withheld))


def as_request(content: list[Any]) -> bytes:
    """Return a request as `read_request` reads it."""
    pickled = pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(pickled)) + pickled


def read_request(stream: BinaryIO) -> list[Any] | None:
    """Return the next request, or None if the parent has closed the stream or died."""
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    [size] = _LENGTH.unpack(length)
    pickled = stream.read(size)
    if len(pickled) < size:
        return None
    content: list[Any] = pickle.loads(pickled)
    return content


def _private_descriptors() -> tuple[int, int]:
    """Move the protocol off stdin and stdout, so that reward functions may read and print. Return
    the descriptors of the requests and of the replies.
    """
    # not inheritable by child processes
    requests = os.dup(0)
    replies = os.dup(1)
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    os.close(devnull)
    return requests, replies


def _score(
    function: BatchRewardFunction,
    problems: list[list[Any]],
    memory_mb: int,
    withheld: WithheldVariables,
) -> dict[str, Any]:
    try:
        scores = function(*problems)
    except Exception as error:
        scores = [error] * len(problems[0])
    reply: dict[str, Any] = {
        "scores": [_score_or_failure(score, memory_mb, withheld) for score in scores]
    }
    if withheld.asked_for():
        reply["withheld"] = withheld.asked_for()
    return reply


def _score_or_failure(
    score: Score | Exception, memory_mb: int, withheld: WithheldVariables
) -> dict[str, Any]:
    if isinstance(score, Exception):
        return _failure(score, memory_mb, withheld)
    try:
        return as_json(score)
    except Exception as error:
        return _failure(error, memory_mb, withheld)


def _failure(error: Exception, memory_mb: int, withheld: WithheldVariables) -> dict[str, Any]:
    chain = list(_chain(error))
    message = _describe(error, memory_mb)
    cause: FailureCause = ""
    if isinstance(error, TimeoutError):
        cause = "time"
    elif any(_is_out_of_memory(each) for each in chain):
        cause = "memory"
        if not isinstance(error, MemoryError):
            message = f"{message}; out of memory (limit {memory_mb} MiB)"
    else:
        withheld.look_in("\n".join(map(str, chain)))
        if withheld.asked_for():
            cause = "environment"
    return {
        "status": "timeout" if cause == "time" else "error",
        "message": message,
        "cause": cause,
        "withheld": withheld.asked_for(),
    }


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and the chain of its causes and contexts."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM


def as_json(score: Score) -> dict[str, Any]:
    """Return a score as the worker sends it.

    Raises:
        CodedValueError: the reward or a part of it is too large.
    """
    for value in (score.reward, *score.breakdown.values()):
        if abs(value) > MAX_REWARD:
            raise CodedValueError(
                f"the reward {value:g} is too large (limit {MAX_REWARD:g}): scale it to about 1",
                code="reward-too-large",
            )
    return {
        "reward": float(score.reward),
        "correct": score.correct,
        "breakdown": {str(part): float(value) for part, value in score.breakdown.items()},
        "parsed": score.parsed,
    }


def _describe(error: Exception, memory_mb: int) -> str:
    if isinstance(error, MemoryError):
        return f"out of memory (limit {memory_mb} MiB)"
    text = str(error)[:_MESSAGE_CHARS]
    is_ours = isinstance(error, CodedValueError) or type(error) is ValueError
    return text if is_ours else f"{type(error).__name__}: {text}"


def _reply(replies: int, token: str, content: dict[str, Any]) -> None:
    data = json.dumps({"token": token, **content}).encode() + b"\n"
    if len(data) > MAX_REPLY_BYTES:
        message = f"the scores take {len(data)} bytes as JSON (limit {MAX_REPLY_BYTES})"
        error = {"token": token, "status": "error", "message": message}
        data = json.dumps(error).encode() + b"\n"
    while data:
        data = data[os.write(replies, data) :]


if __name__ == "__main__":
    main()
