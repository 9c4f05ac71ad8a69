"""A scoring worker process: reads JSON lines from stdin and writes JSON lines to a private
descriptor.

A request has texts, answers and dataset columns, for one completion or for a batch. The reply has
the scores or error messages, and echoes the request's token. Without the token, output that a
reward function or model-written code writes to the descriptor is not accepted as a reply.

`rewards.sandbox` starts it as ``python -m rewards.worker SETTINGS``. `rewards.supervisor` can kill
it with all its descendants, even if native code never returns to the interpreter.
"""

import json
import math
import os
import resource
import sys
from typing import Any

from rewards import any_batch_function, columns, combine_batch, minimum, prepare
from rewards.errors import CodedValueError
from rewards.limits import limit_memory
from rewards.score import BatchRewardFunction, Score
from rewards.supervisor import supervise

_MESSAGE_CHARS = 500
MAX_REPLY_BYTES = 1 << 20
MAX_REWARD = 1e15  # squares of larger ones overflow in float32


def main() -> None:
    """Serve ``[token, texts, answers, rows]`` requests until stdin closes."""
    settings = json.loads(sys.argv[1])
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
        _reply(
            replies, "", {"status": "refused", "message": _describe(error, settings["memory_mb"])}
        )
        return
    limit_memory(settings["memory_mb"])
    _reply(
        replies,
        "",
        {"status": "ready", "minimum": minimum_score, "batches": batches, "columns": used_columns},
    )
    for line in os.fdopen(requests, "rb"):
        if not line.endswith(b"\n"):  # the parent has died
            return
        token, *problems = json.loads(line)
        _reply(replies, token, _score(function, problems, settings["memory_mb"]))


def _private_descriptors() -> tuple[int, int]:
    """Move the protocol off stdin and stdout, so that reward functions may read and print."""
    # not inheritable by child processes
    requests = os.dup(0)
    replies = os.dup(1)
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 1)
    os.close(devnull)
    return requests, replies


def _score(
    function: BatchRewardFunction, problems: list[list[Any]], memory_mb: int
) -> dict[str, Any]:
    try:
        scores = function(*problems)
    except Exception as error:
        scores = [error] * len(problems[0])
    return {"scores": [_score_or_failure(score, memory_mb) for score in scores]}


def _score_or_failure(score: Score | Exception, memory_mb: int) -> dict[str, Any]:
    if isinstance(score, Exception):
        return _failure(score, memory_mb)
    try:
        return as_json(score)
    except Exception as error:
        return _failure(error, memory_mb)


def _failure(error: Exception, memory_mb: int) -> dict[str, Any]:
    status = "timeout" if isinstance(error, TimeoutError) else "error"
    return {
        "status": status,
        "message": _describe(error, memory_mb),
        "memory": isinstance(error, MemoryError),
    }


def as_json(score: Score) -> dict[str, Any]:
    """Return a score as the worker sends it.

    Raises:
        CodedValueError: the reward is not a finite number of a usable size, or a flag is no bool.
    """
    if not math.isfinite(score.reward):
        raise CodedValueError(
            f"the reward must be finite, got {score.reward}", code="reward-not-finite"
        )
    if abs(score.reward) > MAX_REWARD:
        raise CodedValueError(
            f"the reward {score.reward:g} is too large (limit {MAX_REWARD:g}): scale it to about 1",
            code="reward-too-large",
        )
    for name in ("correct", "parsed"):
        if not isinstance(getattr(score, name), bool):
            raise CodedValueError(
                f"Score.{name} must be a bool, got {getattr(score, name)!r}", code="not-a-bool"
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
