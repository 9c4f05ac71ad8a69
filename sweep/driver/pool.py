"""Run the batches of a campaign in one process, with a single Ray instance and ranks that are
reused.

`sweep.gate.pool` starts it as ``python -m sweep.driver SETTINGS``, with the fields of `Settings` as
JSON. Each line of standard input is a batch to run, with the fields of `Request`. Batches run side
by side, as many trials at a time as fit on the machine. When a batch has ended, a line with its
name goes to standard output, with the error if it could not run. Its results are in its folder,
which is the folder of a sweep without a search. Everything else that is printed goes to standard
error.

The line ``null`` ends the process once all batches have ended. If standard input is closed without
``null``, the process that needs the results has ended, and this process stops the trials in an
orderly way.
"""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from loptune.errors import INTERRUPTED, StoppedError, UserError
from loptune.identity import identity
from loptune.run_names import RUNS, check_folder, lock_folder
from loptune.terminal.lasting_output import lasting_output
from sweep.driver.attempts import AfterFailure, Attempts, RetryBudget, make_searcher
from sweep.driver.control import POLL_S, StopControl, graceful_signals
from sweep.driver.guard import MARKER, end_leftovers
from sweep.driver.resume_options import check_checkpoints, retry_failed
from sweep.driver.run import (
    Options,
    ResumableError,
    check_and_record_inputs,
    check_program,
    guarded_scratch,
    started_ray,
)
from sweep.gate.batch import unfinished
from sweep.gate.spec import PROGRAM
from sweep.programs.environment import set_for_sweep, write_environment
from sweep.record.disk import shrink_ended
from sweep.record.folder import SweepFolder, free_name, sweep_folder, write_spec
from sweep.record.sweep_record import SweepRecord, open_sweep
from sweep.search.trial_report import GIVEN_UP, TrialReport, TuneResult
from sweep.space.file import load_space
from sweep.trials.cluster import Node, concurrent_trials
from sweep.trials.pooled import PooledTrial
from sweep.trials.trainable import TrialPlan
from sweep.views.event_lines import EventLines, say

logger = logging.getLogger(__name__)

_PATIENCE_S = 60.0  # seconds to wait for an earlier process that is stopping
_ENDED = "the process that needs the runs has ended"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of the process."""

    folder: str  # contains the program's search space; the sweeps go to its subfolder "runs"
    resume: str  # command that continues after an interruption
    cpus: int | None  # CPUs of this machine to use; all if None


@dataclass(frozen=True, kw_only=True)
class Request:
    """A batch to run."""

    name: str  # name of the batch's sweep; its space is in the subfolder "spaces"
    place: str  # folder in which the program starts
    variables: dict[str, str] = field(default_factory=dict)  # changed environment of the commands


class _EndOfRequests(Enum):
    """Why no further batches come."""

    IN_ORDER = "the line null"
    READER_ENDED = "standard input was closed without it"


@dataclass
class _Attempt:
    """An attempt at a trial of a batch."""

    batch: "_Batch"
    number: str  # distinguishes the trials of the batch
    config: dict[str, Any]  # configuration that the searcher returned

    @property
    def trial(self) -> str:
        return str(self.config["trial"])


@dataclass(frozen=True)
class _Outcome:
    """The outcome of an attempt: a result or an error."""

    attempt: _Attempt
    slot: PooledTrial
    result: TuneResult | None = None
    error: Exception | None = None


class _Batch:
    """A batch that is running.

    Args:
        sweep: its sweep.
        plan: settings that its trials share.
        resume: command that continues after an interruption.
        lock: holds the lock of the sweep's folder.
        is_first: whether it is the first batch of the process.
    """

    def __init__(
        self,
        sweep: SweepRecord,
        plan: TrialPlan,
        resume: str,
        lock: contextlib.ExitStack,
        *,
        is_first: bool,
    ) -> None:
        self.sweep = sweep
        self.plan = plan
        self.control = StopControl(sweep, resume)
        # no limit here, because the pool limits the trials of all batches together
        self.searcher = make_searcher(sweep, self.control, lambda: sys.maxsize)
        self.control.attach(self.searcher.stop, lambda: len(self.searcher.running))
        label = f"{sweep.folder.name.partition('-seeds-')[0]}  "
        self.attempts = Attempts(
            sweep.folder,
            RetryBudget(sweep.spec.limits.max_failures),
            EventLines(
                sweep.folder,
                sweep.spec,
                label=label,
                reports_startup=is_first,  # later batches use the ranks of earlier ones
            ),
        )
        self._lock = lock
        self._count = 0
        self._all_started = False

    @property
    def name(self) -> str:
        """The name of its sweep."""
        return self.sweep.folder.name

    @property
    def has_ended(self) -> bool:
        """Whether no trial is running or waiting."""
        return self._all_started and not self.searcher.running

    def error(self) -> UserError | None:
        """Return the error that kept trials of the batch from ending; None if all have ended."""
        if self.control.problem is not None:
            return self.control.problem
        if self.control.reason is None or not unfinished(self.sweep.folder.runs_dir, self.name):
            return None
        return _stopped(self.name, self.control)

    def check_limits(self) -> None:
        """Stop the batch if a limit of its program is reached, or its stop file exists.

        Raises:
            StorageError: the batch's folder has disappeared.
        """
        if self._count == 0:  # the batch is waiting for other batches
            self.control.start_clock()
        self.control.stop_all()

    def next_attempt(self) -> _Attempt | None:
        """Return the first attempt at the next trial, or None if there is none left."""
        if self._all_started:
            return None
        self._count += 1
        number = str(self._count)
        config = self.searcher.suggest(number)
        if config == Searcher.FINISHED:
            self._all_started = True
            return None
        return _Attempt(self, number, dict(config))

    def close(self) -> None:
        """Reduce the checkpoints of the ended trials, and unlock the folder."""
        shrink_ended(self.sweep, set(), all_have_closed=True)
        self._lock.close()


class _Pool:
    """Runs the trials of all batches in slots, each with the resources of one trial.

    Args:
        settings: settings of the process.
        answer: sends the fields of an answer.
        nodes: this machine.
        control: stops all batches.
        scratch: private folder of this process.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        answer: Callable[..., None],
        nodes: list[Node],
        control: StopControl,
        scratch: Path,
    ) -> None:
        self._folder = Path(settings.folder)
        self._resume = settings.resume
        self._nodes = nodes
        self._control = control
        self._scratch = scratch
        self._answer = answer
        self._batches: list[_Batch] = []
        self._environment_count = 0
        self._batch_count = 0
        self._idle: list[PooledTrial] = []
        self._slot_count = 0
        self._is_closed = False  # whether the last batch was received
        self._events: queue.SimpleQueue[Request | _EndOfRequests | _Outcome] = queue.SimpleQueue()
        control.attach(self._stop_all, lambda: len(self._batches))

    @property
    def is_stopped(self) -> bool:
        """Whether the trials were stopped."""
        return self._control.stopped

    def serve(self) -> None:
        """Run batches until the last one has ended.

        Raises:
            StorageError: Ray has died, or a batch's folder has disappeared.
        """
        threading.Thread(target=self._read, name="requests", daemon=True).start()
        while not self._is_closed or self._batches:
            with contextlib.suppress(queue.Empty):
                self._handle(self._events.get(timeout=POLL_S))
            if self._control.ray_error is not None:
                raise self._control.ray_error
            for batch in list(self._batches):
                batch.check_limits()
                running = [key.name for key in batch.searcher.running.values()]
                batch.attempts.notify("polled", running, [])
            self._start_attempts()
            self._close_ended()
            if self._control.stopped and not self._batches:
                return

    def _read(self) -> None:
        """Turn the requests on standard input into events."""
        for line in sys.stdin:
            fields = json.loads(line)
            if fields is None:
                self._events.put(_EndOfRequests.IN_ORDER)
                return
            self._events.put(Request(**fields))
        self._events.put(_EndOfRequests.READER_ENDED)

    def _handle(self, event: Request | _EndOfRequests | _Outcome) -> None:
        if isinstance(event, _Outcome):
            self._after(event)
        elif isinstance(event, _EndOfRequests):
            self._is_closed = True
            if event is _EndOfRequests.READER_ENDED:
                self._control.request_stop(_ENDED, by_user=True)
        elif self._control.stopped:  # the batch stays unfinished
            error = _stopped(event.name, self._control)
            self._answer(name=event.name, error=_fields(error))
        else:
            self._open(event)

    def _open(self, request: Request) -> None:
        try:
            self._batches.append(self._opened(request))
        except UserError as error:
            self._answer(name=request.name, error=_fields(error))
        if self._control.stopped:  # the stop came while the batch was being opened
            self._stop_all()

    def _opened(self, request: Request) -> _Batch:
        """Start or resume the sweep of a batch.

        Raises:
            UserError: the batch cannot run.
        """
        place = Path(request.place)
        check_folder(place)
        folder = sweep_folder(self._folder / "runs", request.name)
        variables = request.variables
        with contextlib.ExitStack() as stack, contextlib.chdir(place), _import_path(variables):
            stack.enter_context(lock_folder(folder.root, "sweep"))
            if folder.exists():
                sweep = _resumed_sweep(folder)
            else:
                sweep = _new_sweep(folder, self._folder / "spaces" / f"{request.name}.yaml")
            write_spec(folder, sweep.spec)
            plan = TrialPlan(
                spec=sweep.spec,
                folder=folder,
                sweep_id=identity(folder.root),
                working_dir=place,
                environment=self._environment(variables),
            )
            self._batch_count += 1
            return _Batch(
                sweep, plan, self._resume, stack.pop_all(), is_first=self._batch_count == 1
            )

    def _environment(self, variables: dict[str, str]) -> Path:
        """Write the environment of a batch's commands, and return the file."""
        self._environment_count += 1
        path = self._scratch / f"environment-{self._environment_count}.json"
        write_environment(path, variables)
        return path

    def _start_attempts(self) -> None:
        """Start trials until all slots are taken."""
        for batch in self._batches:
            most = concurrent_trials(batch.sweep.spec, self._nodes)
            while self._idle or self._slot_count < most:
                attempt = batch.next_attempt()
                if attempt is None:
                    break
                self._start(attempt, self._free_slot())

    def _free_slot(self) -> PooledTrial:
        if self._idle:
            return self._idle.pop()
        self._slot_count += 1
        return PooledTrial()

    def _start(self, attempt: _Attempt, slot: PooledTrial) -> None:
        def work() -> None:
            try:
                outcome = _Outcome(attempt, slot, result=_run(attempt, slot))
            except Exception as error:
                outcome = _Outcome(attempt, slot, error=error)
            self._events.put(outcome)

        attempt.batch.attempts.started(attempt.config)
        threading.Thread(target=work, name=attempt.trial, daemon=True).start()

    def _after(self, outcome: _Outcome) -> None:
        """Record how an attempt ended. After a failure, start the next attempt or end the trial."""
        attempt = outcome.attempt
        batch = attempt.batch
        if outcome.error is not None:
            action = batch.attempts.after_failure(
                attempt.config, outcome.error, node_was_lost=False
            )
            if action is not AfterFailure.END:
                self._start(attempt, outcome.slot)
                return
            batch.attempts.notify("failed", attempt.trial, attempt.config[GIVEN_UP].reason)
        self._idle.append(outcome.slot)
        if outcome.result is not None:
            batch.control(attempt.number, outcome.result)
            report = TrialReport.of(outcome.result)
            if not report.stopped:  # a stop is printed once for all trials
                batch.attempts.notify("ended", attempt.trial, report)
        has_failed = outcome.error is not None
        batch.searcher.on_trial_complete(attempt.number, outcome.result, error=has_failed)

    def _close_ended(self) -> None:
        for batch in [each for each in self._batches if each.has_ended]:
            self._batches.remove(batch)
            batch.close()
            error = batch.error()
            self._answer(name=batch.name, error=None if error is None else _fields(error))

    def _stop_all(self) -> None:
        for batch in self._batches:
            batch.control.request_stop(self._control.reason or _ENDED, by_user=True)


def _new_sweep(folder: SweepFolder, space: Path) -> SweepRecord:
    """Check the space of a batch, and return its sweep.

    Raises:
        UserError: the batch cannot run. Its name stays free.
    """
    spec = load_space(space)
    spec = spec.with_program(spec.program.with_tracking(offline=True))
    sweep = SweepRecord(spec, folder)
    try:
        check_program(spec)
        check_and_record_inputs(sweep, Options())
    except UserError:
        free_name(folder)
        raise
    return sweep


def _resumed_sweep(folder: SweepFolder) -> SweepRecord:
    """Check the sweep of an interrupted batch, and return it. Failed trials run again if the
    machine may have caused their failure.

    Raises:
        UserError: the batch cannot run.
    """
    folder.stop.unlink(missing_ok=True)
    sweep = open_sweep(folder.runs_dir, folder.name)
    check_program(sweep.spec)
    check_and_record_inputs(sweep, Options())
    retry_failed(sweep, lambda trial: not trial.by_settings)
    sweep = sweep.reloaded()
    check_checkpoints(sweep)
    return sweep


def _run(attempt: _Attempt, slot: PooledTrial) -> TuneResult:
    """Run a trial to its end, and return its last result.

    Raises:
        Exception: the attempt failed.
    """
    slot.take(attempt.batch.plan, attempt.config)
    while True:
        result = slot.step()
        attempt.batch.attempts.evaluated(attempt.trial, result)
        if result["done"]:
            return result


@contextlib.contextmanager
def _import_path(variables: Mapping[str, str]) -> Iterator[None]:
    """Within the block, find modules where the commands of a batch find them. Otherwise the checks
    would read the modules of an editable install instead of the modules of a checkout.
    """
    before = list(sys.path)
    sys.path[:0] = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    try:
        yield
    finally:
        sys.path[:] = before


def _stopped(name: str, control: StopControl) -> StoppedError:
    return StoppedError(
        f"{name} is unfinished: {control.reason}",
        str(control.folder.root),
        f"`{control.resume}` continues",
        code="batch-stopped",
    )


def _fields(error: UserError) -> dict[str, str]:
    """Return the fields of an error, from which `sweep.gate.pool` raises it again."""
    return {
        "kind": type(error).__name__,
        "what": error.what,
        "where": error.where,
        "hint": error.hint,
        "key": error.key,
        "code": error.code,
    }


@lasting_output()
def serve(settings_text: str) -> int:
    """Run the batches on standard input until the last one has ended, and return the exit code. If
    no batch can run, the answer is an error without a name.

    Args:
        settings_text: `Settings` as JSON.
    """
    settings = Settings(**json.loads(settings_text))
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(**fields: Any) -> None:
        with contextlib.suppress(OSError):  # the reader may have ended
            os.write(answers, json.dumps(fields).encode() + b"\n")

    try:
        with _started(settings, answer) as pool:
            pool.serve()
            return INTERRUPTED if pool.is_stopped else 0
    except UserError as error:
        answer(error=_fields(error))
        return error.exit_code


@contextlib.contextmanager
def _started(settings: Settings, answer: Callable[..., None]) -> Iterator[_Pool]:
    """Start Ray for the duration of the block, and yield the pool.

    Raises:
        UserError: Ray did not start, or another process runs the batches of the folder.
    """
    root = Path(settings.folder) / "runs"
    spec = load_space(root.parent / PROGRAM)
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock_folder(root, RUNS, patience=_PATIENCE_S))
        set_for_sweep(MARKER, str(root))
        end_leftovers(root)
        # what all batches share: the folder of Ray's log, and the signals
        together = SweepRecord(spec, SweepFolder(root.parent, root.name))
        together.folder.stop.unlink(missing_ok=True)
        control = StopControl(together, settings.resume)
        killed = ResumableError("the runs were killed; nothing is lost", control, "driver-killed")
        scratch = stack.enter_context(guarded_scratch(root, killed))
        options = Options(cpus=settings.cpus)
        nodes = stack.enter_context(started_ray(options, control, scratch / "ray", spec.resources))
        stack.enter_context(graceful_signals(control, say))
        yield _Pool(settings, answer=answer, nodes=nodes, control=control, scratch=scratch)
