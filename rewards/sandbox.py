"""Scoring of untrusted model output in processes that can be killed.

A completion may make a reward function hang, eat memory or crash the interpreter; here that costs the completion
its score and nothing else. Every worker is a process of its own (``rewards.worker``) with a memory limit; one that
is past the time limit is killed together with all that it started and replaced.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from rewards.score import Score, ScoringStatus
from rewards.worker import MAX_REPLY_BYTES

_START_LIMIT_S = 120.0  # imports of the user's own module included
_MAX_IN_FLIGHT = 256
_READ_BYTES = 1 << 20
_END_LIMIT_S = 10.0
# Waking up for every single reply of a fast function would cost more than scoring; a pause lets some gather.
_GATHER_S = 0.0005
_GATHER_ABOVE = 64


@dataclass(frozen=True)
class ScoredText:
    """The score of one completion and whether it is one: a timeout or an error has the failure score."""

    score: Score
    status: ScoringStatus
    message: str = ""


class ScoringFailedError(RuntimeError):
    """Too many completions of one call have no score."""


class RewardPool:
    """Scores completions in killable processes; used by one thread at a time.

    Args:
        functions: reward name or ``module:function`` -> weight.
        timeout_s: limit for one completion, or for one batch of a function that takes batches [s].
        memory_mb: address space that scoring may take in one process, beyond that of its imports [MiB].
        workers: number of processes.
        failure_score: reward of a completion whose scoring failed; the functions' weighted minimum if None.
        max_failure_rate: share of the completions of one call above which it ends with an error.

    Raises:
        ValueError: a reward that does not exist or cannot be imported.
    """

    def __init__(
        self,
        functions: Mapping[str, float],
        *,
        timeout_s: float,
        memory_mb: int,
        workers: int,
        failure_score: float | None,
        max_failure_rate: float = 1.0,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._settings: dict[str, Any] = {"functions": dict(functions), "memory_mb": memory_mb}
        self._timeout_s = timeout_s
        self._failure_score = failure_score
        self._max_failure_rate = max_failure_rate
        self._failures: list[str] = []  # of the call in progress, a message for each completion
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._columns: dict[str, dict[str, bool]] = {}  # by function those it asks for -> whether it needs them
        self._batches = False  # whether a function takes many completions in one call; the first worker reports it
        try:
            self._workers = [self._start() for _ in range(workers)]
            while not all(worker.ready for worker in self._workers):
                self._serve([], deque())
        except BaseException:
            self.close()
            raise

    @property
    def needed_columns(self) -> list[tuple[str, str]]:
        """Functions and the columns of a problem's row without which they cannot score."""
        return [(name, one) for name, asked in self._columns.items() for one, needed in asked.items() if needed]

    def score(
        self, texts: Sequence[str], answers: Sequence[Any], rows: Sequence[Mapping[str, Any]] = ()
    ) -> list[ScoredText]:
        """Score completions, prefill included; results are in the order of ``texts``. Answers are JSON values.

        ``rows`` are the columns of the problems' rows; none where functions ask for none.

        Raises:
            ScoringFailedError: more than ``max_failure_rate`` of them failed; said at once, for each failure may
                have taken the time limit.
            RuntimeError: a worker cannot be started again.
        """
        if not self._workers:
            raise RuntimeError("the reward pool is closed")
        results: list[ScoredText | None] = [None] * len(texts)
        size = max(1, -(-len(texts) // len(self._workers))) if self._batches else 1
        asked = {column for of_function in self._columns.values() for column in of_function}
        sent = [{name: row[name] for name in asked if name in row} for row in rows or [{}] * len(texts)]
        waiting = deque(
            _job(range(start, min(start + size, len(texts))), texts, answers, sent)
            for start in range(0, len(texts), size)
        )
        self._failures.clear()
        try:
            while waiting or any(worker.in_flight for worker in self._workers):
                self._serve(results, waiting)
                if len(self._failures) > self._max_failure_rate * len(texts):
                    raise ScoringFailedError(
                        f"scoring failed for {len(self._failures)} of {len(texts)} completions "
                        f"(the limit is {self._max_failure_rate:.0%}): {self._failures[0]}"
                    )
        except BaseException:
            # Replies still under way would be taken for those of the next call.
            for worker in self._workers:
                if worker.in_flight:
                    self._replace(worker, deque())
            raise
        scored = [result for result in results if result is not None]
        assert len(scored) == len(texts), f"{len(texts) - len(scored)} of {len(texts)} texts were not scored"
        return scored

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            self._end(worker)
        self._workers = []
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serve(self, results: list[ScoredText | None], waiting: "deque[_Job]") -> None:
        """Distribute work, wait for the next event, read replies and end what is past its limit."""
        for worker in self._workers:
            self._hand_out(worker, waiting)
        deadlines = [worker.deadline for worker in self._workers if worker.deadline is not None]
        if min(len(worker.in_flight) for worker in self._workers) > _GATHER_ABOVE:
            time.sleep(_GATHER_S)
        patience = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for key, mask in self._selector.select(patience):
            if key.data not in self._workers:
                continue  # replaced by an earlier event of this round
            if mask & selectors.EVENT_WRITE:
                self._send(key.data)
            if mask & selectors.EVENT_READ:
                self._receive(key.data, results, waiting)
        now = time.monotonic()
        for worker in list(self._workers):
            # What a worker wrote while this process was busy elsewhere has just been read, so that only a
            # worker that is silent at this moment is late.
            if worker.deadline is not None and now >= worker.deadline and not _readable(worker.replies):
                self._give_up(worker, results, waiting)

    def _hand_out(self, worker: "_Worker", waiting: "deque[_Job]") -> None:
        if not worker.ready or not waiting or 2 * len(worker.in_flight) > _MAX_IN_FLIGHT:
            return
        share = -(-len(waiting) // (2 * len(self._workers)))
        room = min(_MAX_IN_FLIGHT, share) - len(worker.in_flight)
        for _ in range(min(room, len(waiting))):
            job = waiting.popleft()
            if not worker.in_flight:
                worker.deadline = time.monotonic() + self._timeout_s
            worker.in_flight.append(job)
            worker.unsent += job.line
        if worker.unsent:
            self._send(worker)

    def _send(self, worker: "_Worker") -> None:
        try:
            while worker.unsent:
                del worker.unsent[: os.write(worker.requests, worker.unsent)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            worker.unsent.clear()  # its end shows up as the end of its replies
        self._watch_requests(worker, bool(worker.unsent))

    def _watch_requests(self, worker: "_Worker", wanted: bool) -> None:
        if wanted and not worker.watched:
            self._selector.register(worker.requests, selectors.EVENT_WRITE, worker)
        elif worker.watched and not wanted:
            self._selector.unregister(worker.requests)
        worker.watched = wanted

    def _receive(self, worker: "_Worker", results: list[ScoredText | None], waiting: "deque[_Job]") -> None:
        try:
            received = os.read(worker.replies, _READ_BYTES)
        except BlockingIOError:
            return
        if not received:
            self._give_up(worker, results, waiting)
            return
        *lines, worker.unread = (worker.unread + received).split(b"\n")
        if len(worker.unread) > MAX_REPLY_BYTES:
            lines.append(worker.unread)
        for line in lines:
            reply = _read_reply(line, worker.expected_token)
            if reply is None:
                self._give_up(worker, results, waiting, "something else than scores came from the scoring process")
                return
            if not worker.ready:
                self._greet(worker, reply)
                continue
            job = worker.in_flight.popleft()
            if reply["status"] == "memory":
                # The process may be bloated by what came before: only a fresh one can tell.
                if worker.answered:
                    waiting.appendleft(job)
                else:
                    self._fail(job, results, "error", reply["message"])
                self._replace(worker, waiting)
                return
            worker.answered += 1
            worker.deadline = time.monotonic() + self._timeout_s if worker.in_flight else None
            self._take_scores(job, results, reply)

    def _greet(self, worker: "_Worker", reply: dict[str, Any]) -> None:
        if reply["status"] != "ready":
            raise ValueError(reply["message"])
        worker.ready = True
        worker.deadline = None
        self._batches, self._columns = reply["batches"], reply["columns"]
        if self._failure_score is None:
            self._failure_score = float(reply["minimum"])

    def _take_scores(self, job: "_Job", results: list[ScoredText | None], reply: dict[str, Any]) -> None:
        if reply["status"] != "ok":
            status: Literal["timeout", "error"] = "timeout" if reply["status"] == "timeout" else "error"
            self._fail(job, results, status, reply["message"])
            return
        for index, score in zip(job.indices, reply["scores"], strict=True):
            scored = Score(score["reward"], score["correct"], score["breakdown"], score["parsed"])
            results[index] = ScoredText(scored, "ok")

    def _fail(
        self, job: "_Job", results: list[ScoredText | None], status: Literal["timeout", "error"], message: str
    ) -> None:
        assert self._failure_score is not None, "known since the first worker's greeting"
        self._failures += [message] * len(job.indices)
        for index in job.indices:
            results[index] = ScoredText(Score(self._failure_score, False, {}, parsed=False), status, message)

    def _give_up(
        self, worker: "_Worker", results: list[ScoredText | None], waiting: "deque[_Job]", fault: str = ""
    ) -> None:
        """Replace a worker that is late, has died or is at fault; the completion it was scoring has failed."""
        late = worker.deadline is not None and time.monotonic() >= worker.deadline
        self._kill(worker)
        code = worker.process.returncode
        if not worker.ready:
            cause = fault or (
                f"did not start within {_START_LIMIT_S:g} s" if late else f"ended at its start (exit {code})"
            )
            modules = ", ".join(name for name in self._settings["functions"] if ":" in name) or "the reward"
            raise ScoringFailedError(f"the scoring process {cause}: {modules} does not import")
        if worker.in_flight:
            job = worker.in_flight.popleft()
            if late and not fault:
                self._fail(job, results, "timeout", f"no score after {self._timeout_s:g} s")
            else:
                self._fail(job, results, "error", fault or f"the scoring process ended (exit {code})")
        self._replace(worker, waiting)

    def _replace(self, worker: "_Worker", waiting: "deque[_Job]") -> None:
        waiting.extendleft(reversed(worker.in_flight))
        self._end(worker)
        self._workers[self._workers.index(worker)] = self._start()

    def _start(self) -> "_Worker":
        (replies, reply_fd), (lifeline_fd, lifeline) = os.pipe(), os.pipe()
        settings = {**self._settings, "reply_fd": reply_fd, "lifeline_fd": lifeline_fd}
        # The worker finds the same modules as this process, and the user's own ones last: a file `rewards.py`
        # where the user stands must not hide this package (-P leaves that folder out). One thread is what the CPU
        # limit counts on.
        ours, here = str(Path(__file__).resolve().parents[1]), os.getcwd()
        paths = [entry for entry in sys.path if entry not in ("", here, ours)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([*paths, ours, here]),
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "1",
        }
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rewards.worker", json.dumps(settings)],
                stdin=subprocess.PIPE,
                pass_fds=(reply_fd, lifeline_fd),
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        finally:
            os.close(reply_fd)
            os.close(lifeline_fd)
        assert process.stdin is not None
        worker = _Worker(process, process.stdin.fileno(), replies, lifeline)
        os.set_blocking(worker.requests, False)
        os.set_blocking(worker.replies, False)
        self._selector.register(replies, selectors.EVENT_READ, worker)
        return worker

    def _end(self, worker: "_Worker") -> None:
        self._watch_requests(worker, False)
        self._selector.unregister(worker.replies)
        self._kill(worker)
        assert worker.process.stdin is not None
        worker.process.stdin.close()
        os.close(worker.replies)

    def _kill(self, worker: "_Worker") -> None:
        """End the process and all that it started; one that ended by itself keeps its exit code."""
        if worker.lifeline is not None:
            os.close(worker.lifeline)
            worker.lifeline = None
        try:
            worker.process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:  # something it started cannot be killed
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()


@dataclass(frozen=True)
class _Job:
    indices: range  # of the texts
    token: str  # repeated by the answer; reward functions do not see it
    line: bytes


def _job(indices: range, *of_texts: Sequence[Any]) -> _Job:
    part, token = slice(indices.start, indices.stop), secrets.token_hex(16)
    content = [token, *(list(values[part]) for values in of_texts)]
    return _Job(indices, token, json.dumps(content, default=str).encode() + b"\n")


def _read_reply(line: bytes, token: str | None) -> dict[str, Any] | None:
    """The reply that a line holds; None where it is not the answer to the question that carried the token."""
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return reply if token is not None and isinstance(reply, dict) and reply.get("token") == token else None


class _Worker:
    """One process, the jobs it was given in order, and when the first of them is late."""

    def __init__(self, process: "subprocess.Popen[bytes]", requests: int, replies: int, lifeline: int) -> None:
        self.process = process
        self.lifeline: int | None = lifeline  # the supervisor ends everything when it is closed
        self.requests = requests
        self.replies = replies
        self.in_flight: deque[_Job] = deque()
        self.unsent = bytearray()
        self.unread = b""
        self.watched = False
        self.ready = False
        self.answered = 0
        self.deadline: float | None = time.monotonic() + _START_LIMIT_S

    @property
    def expected_token(self) -> str | None:
        """The token that the next reply begins with, empty for the greeting; None where no question is open."""
        if not self.ready:
            return ""
        return self.in_flight[0].token if self.in_flight else None


def _readable(descriptor: int) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(0))
