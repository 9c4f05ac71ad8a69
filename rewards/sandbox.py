"""Scoring of untrusted model output in killable worker processes.

A completion may make a reward function hang, exhaust memory or crash the interpreter. Only that
completion then loses its score. Every worker is a separate process (`rewards.worker`) with a memory
limit. A worker that exceeds the time limit is killed together with its descendants and replaced.
"""

import asyncio
import json
import os
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any, Self

from rewards.score import FailureCause, Rows, Score, ScoringStatus, Weights
from rewards.withheld import split_environment
from rewards.worker import MAX_REPLY_BYTES, as_request

MAX_FAILURE_RATE = 0.2  # largest fraction of a rank's completions that may fail in one step
_START_LIMIT_S = 120.0  # includes importing the user's module
_MAX_IN_FLIGHT = 256  # jobs per worker
_END_LIMIT_S = 10.0
_GRACE_S = 0.1  # extra time to read a reply that arrived while this process was busy
# Waking up for every reply of a fast function would cost more than scoring, so a short pause
# batches them.
_GATHER_S = 0.0005
_GATHER_ABOVE = 64  # pause only with more jobs in flight


@dataclass(frozen=True)
class ScoredText:
    """The score of one completion and the status of scoring it. After a timeout or an error,
    ``score`` is the failure score, and ``message`` and ``cause`` describe the failure.
    """

    score: Score
    status: ScoringStatus
    message: str = ""
    cause: FailureCause = ""


_Results = list[ScoredText | None]  # results of one call, in the order of the completions


class PoolClosedError(RuntimeError):
    """A closed pool was asked to score completions."""


class ScoringFailedError(RuntimeError):
    """Scoring failed for too many completions of one call, or a worker died or did not start in
    time.

    ``failure`` is the message of the first failed completion without the counts, ``cause`` is its
    cause, and ``withheld`` lists the withheld environment variables that scoring asked for.
    """

    def __init__(
        self,
        text: str,
        failure: str | None = None,
        cause: FailureCause = "",
        withheld: Sequence[str] = (),
    ) -> None:
        super().__init__(text)
        self.failure = failure or text
        self.cause = cause
        self.withheld = withheld


class ScoringRefusedError(ValueError):
    """A reward function cannot be used.

    ``cause`` is the cause of the failure, and ``withheld`` lists the withheld environment variables
    that the function asked for.
    """

    def __init__(self, text: str, cause: FailureCause, withheld: Sequence[str]) -> None:
        super().__init__(text)
        self.cause = cause
        self.withheld = withheld


class RewardPool:
    """Pool of killable worker processes that score completions. Not thread-safe.

    Args:
        functions: reward name or ``module:function`` -> weight.
        timeout_s: time limit per completion, or per batch for batch functions [s].
        memory_mb: address space that scoring may use per process, in addition to the imports [MiB].
        workers: number of processes.
        max_failure_rate: fraction of failed completions above which `score` raises.
        environment: environment variables to pass to the workers although they look like secrets.

    Raises:
        ScoringRefusedError: a reward is unknown, its module cannot be imported, or its
            ``prepare()``, ``MINIMUM`` or signature is at fault.
        ScoringFailedError: a worker died or did not start in time.
    """

    def __init__(
        self,
        functions: Weights,
        *,
        timeout_s: float,
        memory_mb: int,
        workers: int,
        max_failure_rate: float = 1.0,
        environment: Sequence[str] = (),
    ) -> None:
        self._settings: dict[str, Any] = {"functions": dict(functions), "memory_mb": memory_mb}
        self._environment = frozenset(environment)
        self._timeout_s = timeout_s
        # whether a scoring failure has been reported, see `trainer.rollouts.collect`
        self.failure_reported = False
        # weighted MINIMUM of the functions, reported by the workers at start
        self._failure_score = 0.0
        self._max_failure_rate = max_failure_rate
        # failed completions of the current call
        self._failures: list[ScoredText] = []
        # withheld environment variables that scoring has asked for
        self._asked_for: set[str] = set()
        # tokens of the current call's jobs that were retried after a SIGKILL
        self._retried: set[str] = set()
        self._workers: dict[int, _Worker] = {}  # by index
        # dataset columns that the functions use; None for all columns
        self._columns: list[str] | None = []
        # whether any function takes batches, reported by the workers at start
        self._batches = False
        self._loop = asyncio.new_event_loop()
        Thread(target=_keep_running, args=[self._loop], name="rewards", daemon=True).start()
        try:
            self._run(self._start_all(range(workers)))
        except BaseException:
            self.close()
            raise

    def score(
        self, texts: Sequence[str], answers: Sequence[Any], rows: Rows = ()
    ) -> list[ScoredText]:
        """Score prefill + completion for each completion; results are in the order of ``texts``.
        Answers and columns are passed to the functions unchanged.

        ``rows`` has each problem's dataset columns; it may be empty if no function uses columns.

        Raises:
            ScoringFailedError: more than ``max_failure_rate`` of the completions failed. Raised as
                soon as that is certain, because each failure may take the full time limit. Also
                raised if a worker that must be replaced dies or does not start in time.
            ScoringRefusedError: a new worker cannot use the reward function.
            PoolClosedError: the pool is closed.
        """
        if not self._workers:
            raise PoolClosedError("the reward pool is closed")
        rows = rows or [{}] * len(texts)
        results: list[ScoredText | None] = [None] * len(texts)
        size = 1
        if self._batches:
            size = max(1, -(-len(texts) // len(self._workers)))
        sent_rows = [self._sent(row) for row in rows]
        waiting = deque(
            _job(range(start, min(start + size, len(texts))), texts, answers, sent_rows)
            for start in range(0, len(texts), size)
        )
        self._failures.clear()
        self._retried.clear()
        try:
            self._run(self._score_all(waiting, results))
        except BaseException:
            self._run(self._replace_busy())
            raise
        scored = [result for result in results if result is not None]
        assert len(scored) == len(texts), f"{len(scored)} of {len(texts)} texts were scored"
        return self._with_failure_score(scored)

    def _sent(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of a row that the functions use."""
        if self._columns is None:
            return dict(row)
        return {name: row[name] for name in self._columns if name in row}

    @property
    def withheld(self) -> list[str]:
        """Withheld environment variables that scoring has asked for, sorted."""
        return sorted(self._asked_for)

    def _with_failure_score(self, results: Sequence[ScoredText]) -> list[ScoredText]:
        """Give failed completions the lowest score of this call, or the functions' `MINIMUM` if
        that is lower: a completion that crashes the scorer must not earn more than a wrong one.
        """
        scores = [result.score.reward for result in results if result.status == "ok"]
        lowest = min([self._failure_score, *scores])
        failed = Score(lowest, False, {}, parsed=False)
        with_scores = []
        for result in results:
            if result.status != "ok":
                result = replace(result, score=failed)
            with_scores.append(result)
        return with_scores

    def close(self) -> None:
        """End all processes."""
        self._run(_cancel_others())
        self._run(_end_all(self._workers.values()))
        self._workers = {}
        self._loop.call_soon_threadsafe(self._loop.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the pool's thread and wait. The calling thread cannot run it, because
        it may already be running an event loop, as in a notebook.
        """
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start_all(self, places: Sequence[int]) -> None:
        await asyncio.gather(*map(self._start, places))

    async def _score_all(self, waiting: "deque[_Job]", results: _Results) -> None:
        await asyncio.gather(*(self._serve(slot, waiting, results) for slot in self._workers))

    async def _serve(self, place: int, waiting: "deque[_Job]", results: _Results) -> None:
        """Feed jobs to one worker and read its replies until no job is left; replace the worker
        when it dies.
        """
        while True:
            worker = self._workers[place]
            self._send_jobs(worker, waiting)
            if not worker.in_flight:
                return
            if len(worker.in_flight) > _GATHER_ABOVE:
                await asyncio.sleep(_GATHER_S)
            job = worker.in_flight[0]
            try:
                reply = await worker.reply(job.token, self._timeout_s)
            except _WorkerLostError as error:
                worker.ready = False
                worker.in_flight.popleft()
                killed = worker.process.returncode == -signal.SIGKILL
                if killed and job.token not in self._retried:
                    # Killed by the OOM killer or from outside: retry once before blaming the text.
                    self._retried.add(job.token)
                    waiting.appendleft(job)
                else:
                    cause: FailureCause = "time" if error.status == "timeout" else ""
                    self._fail(job.indices, results, error.status, error.message, cause)
                await self._replace(place, waiting)
                continue
            worker.in_flight.popleft()
            self._asked_for.update(reply.get("withheld", ()))
            # a reply with a status instead of scores applies to the whole job
            scores = [reply] * len(job.indices) if "status" in reply else reply["scores"]
            out_of_memory = any(score.get("cause") == "memory" for score in scores)
            if out_of_memory and worker.answered:
                # Earlier completions may have used up the memory: retry in a fresh process.
                waiting.appendleft(job)
            else:
                worker.answered += 1
                for index, score in zip(job.indices, scores, strict=True):
                    if "status" in score:
                        self._asked_for.update(score.get("withheld", ()))
                        status, message = score["status"], score["message"]
                        self._fail([index], results, status, message, score.get("cause", ""))
                    else:
                        results[index] = ScoredText(Score(**score), "ok")
            if out_of_memory:
                await self._replace(place, waiting)

    def _send_jobs(self, worker: "_Worker", waiting: "deque[_Job]") -> None:
        if 2 * len(worker.in_flight) > _MAX_IN_FLIGHT:
            return
        fair = -(-len(waiting) // (2 * len(self._workers)))
        capacity = min(_MAX_IN_FLIGHT, fair) - len(worker.in_flight)
        jobs = [waiting.popleft() for _ in range(min(capacity, len(waiting)))]
        if jobs:
            worker.in_flight.extend(jobs)
            assert worker.process.stdin is not None
            worker.process.stdin.write(b"".join(job.request for job in jobs))

    def _fail(
        self,
        indices: Sequence[int],
        results: _Results,
        status: ScoringStatus,
        message: str,
        cause: FailureCause,
    ) -> None:
        score = Score(self._failure_score, False, {}, parsed=False)
        failure = ScoredText(score, status, message, cause)
        for index in indices:
            results[index] = failure
        self._failures += [failure] * len(indices)
        if len(self._failures) > self._max_failure_rate * len(results):
            first = self._failures[0]
            raise ScoringFailedError(
                f"scoring failed for {len(self._failures)} of {len(results)} completions "
                f"(limit {self._max_failure_rate:.0%}); first error: {first.message}",
                failure=first.message,
                cause=first.cause,
                withheld=self.withheld,
            )

    async def _replace_busy(self) -> None:
        """Replace busy workers: their pending replies would be mistaken for replies to the next
        call.
        """
        await _cancel_others()
        busy = [
            slot for slot, worker in self._workers.items() if worker.in_flight or not worker.ready
        ]
        await _end_all([self._workers[slot] for slot in busy])
        await self._start_all(busy)

    async def _replace(self, place: int, waiting: "deque[_Job]") -> None:
        worker = self._workers[place]
        waiting.extendleft(reversed(worker.in_flight))
        worker.in_flight.clear()
        await worker.end()
        await self._start(place)

    async def _start(self, place: int) -> None:
        lifeline_fd, lifeline = os.pipe()
        # The worker uses this process's import path, with the current folder last: a user's
        # `rewards.py` must not shadow this package (-P drops the current folder). OMP_NUM_THREADS=1
        # because the CPU limit assumes one thread.
        ours = str(Path(__file__).resolve().parents[1])
        users = os.getcwd()
        paths = [entry for entry in sys.path if entry not in ("", users, ours)]
        inherited, withheld = split_environment(os.environ, self._environment)
        settings = {**self._settings, "lifeline_fd": lifeline_fd, "withheld": withheld}
        environment = inherited | {
            "PYTHONPATH": os.pathsep.join([*paths, ours, users]),
            "OMP_NUM_THREADS": "1",
            "MALLOC_ARENA_MAX": "1",
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "rewards.worker", json.dumps(settings)),
                stdin=PIPE,
                stdout=PIPE,
                limit=MAX_REPLY_BYTES,
                pass_fds=(lifeline_fd,),
                env=environment,
                start_new_session=True,  # the parent handles Ctrl-C
            )
        finally:
            os.close(lifeline_fd)
        worker = self._workers[place] = _Worker(process, lifeline)
        try:
            greeting = await worker.reply("", _START_LIMIT_S)
        except _WorkerLostError as error:
            modules = (
                ", ".join(name for name in self._settings["functions"] if ":" in name)
                or "the reward"
            )
            raise ScoringFailedError(
                f"{error.message} while starting: cannot import {modules}"
            ) from None
        if greeting["status"] != "ready":
            raise ScoringRefusedError(
                greeting["message"], cause=greeting["cause"], withheld=greeting["withheld"]
            )
        self._asked_for.update(greeting["withheld"])
        worker.ready = True
        self._batches = greeting["batches"]
        self._columns = greeting["columns"]
        self._failure_score = float(greeting["minimum"])


def _keep_running(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()  # until stop()
    loop.close()


class _WorkerLostError(Exception):
    """A worker will not reply."""

    def __init__(self, status: ScoringStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class _Job:
    indices: range  # positions of the job's completions in the call
    token: str  # echoed in the reply; hidden from reward functions
    request: bytes


def _job(indices: range, *of_texts: Sequence[Any]) -> _Job:
    part = slice(indices.start, indices.stop)
    token = secrets.token_hex(16)
    content = [token, *(list(values[part]) for values in of_texts)]
    return _Job(indices, token, as_request(content))


@dataclass
class _Worker:
    """One worker process and its jobs in flight, in order."""

    process: Process
    lifeline: int | None  # closing it makes the supervisor kill the worker
    in_flight: deque[_Job] = field(default_factory=deque)
    ready: bool = False
    answered: int = 0

    async def reply(self, token: str, limit_s: float) -> dict[str, Any]:
        """Return the reply to the job with this token.

        Raises:
            _WorkerLostError: timeout, dead process, or malformed reply.
        """
        line = await self._line(limit_s)
        if not line.endswith(b"\n"):
            await self.end()
            raise _WorkerLostError(
                "error", f"the scoring process died (exit code {self.process.returncode})"
            )
        with suppress(ValueError, RecursionError):
            reply = json.loads(line)
            if isinstance(reply, dict) and reply.get("token") == token:
                return reply
        raise _WorkerLostError("error", "the scoring process sent an invalid reply")

    async def _line(self, limit_s: float) -> bytes:
        assert self.process.stdout is not None
        for timeout_s in (limit_s, _GRACE_S):
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    try:
                        return await self.process.stdout.readline()
                    except ValueError:  # longer than MAX_REPLY_BYTES
                        return b"\n"
        raise _WorkerLostError("timeout", f"no score after {limit_s:g} s")

    async def end(self) -> None:
        """Kill the process and its descendants. If it exited on its own, its exit code is kept."""
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None
        assert self.process.stdin is not None
        self.process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_LIMIT_S):
                await self.process.wait()
        # usually nothing is left in its group, unless the supervisor itself was killed
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)


async def _end_all(workers: Iterable[_Worker]) -> None:
    await asyncio.gather(*(worker.end() for worker in workers))


async def _cancel_others() -> None:
    """Cancel the tasks that an interrupted call left running."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
