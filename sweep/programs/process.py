"""Run one trial of a command: start its process, read its metrics and stop it."""

import contextlib
import errno
import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from pydantic import NonNegativeInt, TypeAdapter

from loptune.errors import CommandError, ProgramError, printable, shortened
from loptune.files import Record, free_bytes, read_records
from loptune.progress import MetricValues
from loptune.reporting import PREFIX
from loptune.yaml_document import nearest
from sweep.programs.base import Assignment
from sweep.programs.environment import command_environment
from sweep.programs.read_so_far import Position, ReadSoFar
from sweep.programs.warm_interpreter import WarmProcess, start_warm
from trainer.parallel.gpus import GPU_FRACTION_VARIABLE, visible_gpus
from trainer.run_folder import RunFolder
from trainer.tracking.tracker import Tracker
from trainer.tracking.uploading import ATTEMPT

_POLL_S = 0.1
_SAVE_S = 300.0  # seconds for a command to save and exit after SIGTERM
_LEAVE_S = 5.0  # seconds for a command to exit if its work is no longer needed
# seconds since the previous line, from which a trial's cost is computed
_SECONDS = "time/evaluation"
# names that the trial record adds itself
OF_RECORD = ("time", "nonfinite", "time/step", _SECONDS, ATTEMPT)
# variables that the rank passes to the command: devices, caches, and the sweep's marker, by which a
# later driver finds orphaned processes
_FROM_RANK = ("CUDA_VISIBLE_DEVICES", "LOPTUNE_SWEEP", "VLLM_CACHE_ROOT", GPU_FRACTION_VARIABLE)
_FULL = os.strerror(errno.ENOSPC)
# free bytes below which the disk is considered full: the command may not even be able to write its
# error
_FULL_BYTES = 2**20
# The driver uploads shorter trials to MLflow, because importing MLflow would cost the rank one
# second of CPU time.
_UPLOAD_AFTER_S = 30.0
_LAST_LINES = 5
# A command reports that it ran out of memory only in its own words.
_MEMORY = re.compile(r"out ?of ?memory|MemoryError|cannot allocate memory", re.IGNORECASE)
_LAST_BYTES = 65_536  # bytes to read from the end of standard error
# bytes of the line before a reader's position, stored to detect a rewritten file
_LAST_LINE_BYTES = 256
_LONG_LINE_BYTES = 65_536  # a longer incomplete line is read in parts
_STEP = TypeAdapter(NonNegativeInt)
_Values = dict[tuple[int, str], str]  # (step, metric) -> latest value as JSON


class CommandRun:
    """One trial of a command, run by a rank."""

    total_steps = 0

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._run_dir = assignment.context.run_dir
        self._folder = self._run_dir / "out"
        self._errors = RunFolder(self._run_dir).stderr
        self._process: subprocess.Popen[bytes] | WarmProcess | None = None
        self._lifeline = -1
        # lines that are read but not yet recorded, each with the reader position after it
        self._waiting: deque[tuple[Record, dict[str, Position]]] = deque()
        self._earlier: _Values = {}  # recorded lines of earlier processes
        self._own: _Values = {}  # lines of this process
        self._metrics = assignment.scored_by.metrics
        self._evaluations = _Evaluations(self._metrics)
        self._files = {
            "metrics": _Lines(RunFolder(self._folder).metrics, "", self._metrics),
            "stdout": _Lines(RunFolder(self._run_dir).stdout, PREFIX, self._metrics),
        }
        self._read_so_far = ReadSoFar(self._run_dir, RunFolder(self._folder).correctness)
        # step of this process's latest value of each metric of the score, by file and metric
        self._objective_steps: dict[tuple[str, str], int] = {}
        # time of abandoned steps that is not yet part of a new record
        self._abandoned_seconds = 0.0
        self.step = 0
        self.done = self.stopped = False
        self._tracker = Tracker(
            assignment.config,
            assignment.context,
            must_connect=False,
            declared=False,
            upload_after_s=_UPLOAD_AFTER_S,
        )

    @property
    def history(self) -> Mapping[int, float]:
        """The first metric of the score by training step, without abandoned steps."""
        return self._tracker.history

    def resume(self) -> int:
        """Read the lines that an earlier process wrote after the last recorded line, and return the
        last recorded step. These lines are reported first; then a new process starts.

        Raises:
            ProgramError: a line is not a metric line.
        """
        self._folder.mkdir(exist_ok=True)
        self._is_used = any(self._folder.iterdir())
        for line in read_records(RunFolder(self._run_dir).metrics):
            self._earlier |= _values(line)
            self._evaluations.add(line)
            self.step = max(self.step, line["step"])
        for name, file in self._files.items():
            file.position = self._read_so_far.positions.get(name, file.position)
        self._read(ended=True)
        return self.step

    def _start(self) -> subprocess.Popen[bytes] | WarmProcess:
        # Skip the rank's own lines.
        self._errors_before = self._errors.stat().st_size if self._errors.exists() else 0
        self._moved = time.monotonic()
        config = self._assignment.config
        values = self._run_dir / "config.json"
        # A trial with several GPUs has one rank per GPU, each with its share of the cores.
        gpus = max(1, visible_gpus())
        threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        values.write_text(json.dumps(config.values, indent=1), "utf-8")
        environment = command_environment(self._assignment.environment, os.environ)
        environment |= {name: os.environ[name] for name in _FROM_RANK if name in os.environ}
        # torchrun and `accelerate launch` would kill their ranks 30 s after SIGTERM.
        environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", f"{_SAVE_S:.0f}")
        environment |= {
            "LOPTUNE_CONFIG": str(values),
            "LOPTUNE_SEED": str(config.seed),
            "LOPTUNE_OUT": str(self._folder),
            "LOPTUNE_RESUME": str(int(self._is_used)),
            "OMP_NUM_THREADS": str(max(1, threads // gpus)),
            "PYTHONUNBUFFERED": "1",  # standard output is read without delay
        }
        theirs, self._lifeline = os.pipe()
        words = config.words(self._folder)
        process: subprocess.Popen[bytes] | WarmProcess | None = None
        with RunFolder(self._run_dir).stdout.open("ab") as output:
            if config.preload:
                process = start_warm(config.preload, words, environment, output, theirs)
            if process is None:
                launch = [sys.executable, "-P", "-m", "sweep.programs.launch", str(theirs)]
                try:
                    process = subprocess.Popen(
                        [*launch, *words],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        pass_fds=(theirs,),
                        start_new_session=True,
                    )
                except OSError as error:
                    if error.errno != errno.E2BIG:
                        raise
                    longest = max(words, key=len)
                    raise ProgramError(
                        f"the command line is too long: its longest argument has {len(longest):,} "
                        "characters, but Linux allows at most 128 KiB per argument",
                        f"program.command: {shortened(longest, 60)}",
                        "remove the value from the command, and read it in the program from "
                        "the JSON file $LOPTUNE_CONFIG, which contains all values",
                        key="program.command",
                        code="argument-too-long",
                    ) from None
        os.close(theirs)
        return process

    def train_until_evaluation(self) -> MetricValues:
        """Record lines until every metric of the score has a value at the same step, and return
        everything that was logged at this step; only ``step`` if the trial was stopped or the
        command has ended.

        Raises:
            ProgramError: a line cannot be read, steps decrease, the command line is too long for
                Linux, or the command ended without logging a metric of the score.
            CommandError: the command failed.
            RuntimeError: it was killed or ran out of memory, or wrote no line for too long.
            OSError: the command cannot be started, or it failed and the disk is full.
        """
        stall_s = self._assignment.stall_timeout_s
        if self._process is None:
            self._moved = time.monotonic()
            for line in self._recorded():  # lines of an earlier process
                if evaluation := self._evaluations.add(line):
                    return evaluation
            self._read_so_far.begin_process(self._positions)
            self._tracker.begin_process()
            self._process = self._start()
        while True:
            # poll before reading, so that the last lines are not missed
            code = self._process.poll()
            self._read(ended=code is not None)
            for line in self._recorded():
                if evaluation := self._evaluations.add(line):
                    return evaluation
            if self._assignment.stop_file.exists():
                self._stop()
                return {"step": self.step}
            if code is not None:
                self._finish(code)
                return {"step": self.step}
            if time.monotonic() - self._moved > stall_s:
                raise RuntimeError(
                    f"the command has written no line for {stall_s:g} s (limits.stall_timeout_s)"
                )
            time.sleep(_POLL_S)

    def _stop(self) -> None:
        """Ask the command to save and exit."""
        self.stopped = True
        self._end(_SAVE_S)
        self._read(ended=True)
        list(self._recorded())

    def close(self, status: str = "FINISHED") -> None:
        """End the process and the record."""
        self._end(_LEAVE_S)
        if self._process is not None:
            self._log({})
        self._read_so_far.copy_correctness()
        self._tracker.close(status)

    def _read(self, ended: bool = False) -> None:
        """Read new lines, but skip lines that repeat the latest values of their step, because a
        script may rewrite its file. If ``ended``, the process has ended, so a last line without a
        newline is read, too.
        """
        for name, file in self._files.items():
            for line in file.new(ended):
                values = _values(line)
                known = self._earlier if self._process is None else self._own
                if any(known.get(key) != value for key, value in values.items()):
                    known |= values
                    self._waiting.append((line, {name: file.position}))

    def _recorded(self) -> Iterator[Record]:
        """Record the waiting lines, and yield the ones that contain new values."""
        while self._waiting:
            line, positions = self._waiting.popleft()
            is_new = True
            if self._process is not None:
                self._abandon(line["step"])
                values = _values(line)
                is_new = any(self._earlier.get(key) != value for key, value in values.items())
                if is_new:  # this process now has the latest value
                    for key in values:
                        self._earlier.pop(key, None)
            self.step = step = line.pop("step")
            if is_new:
                self._check_order(step, line, files=positions)
                self._log(line)
            self._read_so_far.save(positions)
            if is_new:
                yield line | {"step": step}

    def _check_order(self, step: int, line: Record, files: Iterable[str]) -> None:
        """Reject an evaluation of the running process if its step is smaller than the last one in
        the same file.

        The score is the mean of the evaluations at the largest steps. If steps decrease, as in a
        countdown, the largest steps would be the steps of the first evaluations.

        Raises:
            ProgramError: the step is smaller.
        """
        if self._process is None:
            return
        logged = [metric for metric in self._metrics if metric in line]
        for file, metric in itertools.product(files, logged):
            last = self._objective_steps.get((file, metric), step)
            if step < last:
                raise ProgramError(
                    f"steps decrease: the command logged {metric} at step {step} after step {last}",
                    str(self._run_dir),
                    'log the number of training steps so far as "step"',
                    key="step",
                    code="steps-decrease",
                )
            self._objective_steps[file, metric] = step

    def _abandon(self, step: int) -> None:
        """Drop records of later steps that earlier processes wrote: the running process did not
        resume from them.
        """
        if all(earlier <= step for earlier, _ in self._earlier):
            return
        dropped = self._tracker.abandon(step)
        self._abandoned_seconds += sum(float(line.get(_SECONDS) or 0) for line in dropped)
        self._read_so_far.abandon(step)
        self._evaluations.abandon(step)
        for key in list(self._earlier):
            recorded_step, _ = key
            if recorded_step > step:
                del self._earlier[key]

    def _log(self, metrics: MetricValues) -> None:
        before = self._moved
        self._moved = time.monotonic()
        seconds = self._moved - before + self._abandoned_seconds
        self._abandoned_seconds = 0.0
        self._tracker.log({**metrics, _SECONDS: seconds}, self.step)

    @property
    def _positions(self) -> dict[str, Position]:
        return {name: file.position for name, file in self._files.items()}

    def _finish(self, code: int) -> None:
        if code != 0:
            errors = self._last_errors()
            if _FULL in errors or free_bytes(self._folder) < _FULL_BYTES:
                raise OSError(errno.ENOSPC, _FULL)
            if code < 0:
                name = _signal_name(-code)
                raise RuntimeError(f"the command was killed by {name}: {errors}")
            kind = RuntimeError if _MEMORY.search(errors) else CommandError
            raise kind(f"the command ended with {code}: {errors}")
        logged = {name for _, name in [*self._earlier, *self._own]}
        absent = [metric for metric in self._metrics if metric not in logged]
        if absent:
            metric = absent[0]
            names = sorted(logged - {"step"})
            hint = (
                f'print or append lines such as {{"step": 20, "{metric}": 0.61}}; a command that '
                "submits a job must wait for the job, for example with sbatch --wait"
            )
            if names:
                hint = nearest(metric, names).replace("valid:", "it logged:")
            raise ProgramError(
                f"the command exited without logging {metric}",
                str(self._files["metrics"].path),
                hint,
                key=metric,
                code="metric-not-logged",
            )
        self.done = True

    def _last_errors(self) -> str:
        with self._errors.open("rb") as file:
            file.seek(max(self._errors_before, self._errors.stat().st_size - _LAST_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
        stripped = [line.strip() for line in lines]
        last = [line for line in stripped if line][-_LAST_LINES:]
        return " | ".join(map(printable, last)) or "standard error is empty"

    def _end(self, patience_s: float) -> None:
        """Stop the process and its descendants with SIGTERM, then SIGKILL after ``patience_s``
        seconds.
        """
        process = self._process
        if process is None or self._lifeline < 0:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
        os.close(self._lifeline)  # kills all remaining descendants
        self._lifeline = -1
        process.wait()


def _values(line: Record) -> _Values:
    """Return the values of a line; non-finite values are null in the record."""
    values: _Values = {}
    for name, value in line.items():
        if name in OF_RECORD:
            continue
        if value in (None, math.inf, -math.inf):
            value = math.nan
        values[line["step"], name] = str(value)
    return values


class _Evaluations:
    """The values of the score's metrics so far, which may be logged on several lines of a step."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self._metrics = metrics
        self._by_step: dict[int, Record] = {}

    def add(self, line: Record) -> Record | None:
        """Add a line. Return everything logged at its step if the line has a metric of the score
        and none is missing there; else None.
        """
        logged = self._by_step.setdefault(line["step"], {})
        for name, value in line.items():
            if name not in OF_RECORD:
                logged[name] = value
        has_any = any(metric in line for metric in self._metrics)
        has_all = all(metric in logged for metric in self._metrics)
        return dict(logged) if has_any and has_all else None

    def abandon(self, step: int) -> None:
        """Forget the values of all steps after ``step``."""
        self._by_step = {at: line for at, line in self._by_step.items() if at <= step}


class _Lines:
    """New metric lines of a growing file."""

    def __init__(self, path: Path, prefix: str, metrics: Sequence[str]) -> None:
        self.path = path
        self._prefix = prefix
        self._metrics = metrics
        self._offset = 0
        self._last = b""  # end of the line before the offset

    @property
    def position(self) -> Position:
        """The reading position in the file: the offset, and the end of the line before it."""
        return self._offset, self._last.decode("latin-1")

    @position.setter
    def position(self, position: Position) -> None:
        self._offset, last = position
        self._last = last.encode("latin-1")

    def new(self, ended: bool) -> Iterator[Record]:
        """Yield the metrics of the lines since the last call, or of all lines if the file was
        rewritten.

        After the process has ended, a last line without a newline is used if it can be parsed;
        otherwise it is treated as truncated.

        Raises:
            ProgramError: the metrics of a line are invalid.
        """
        if not self.path.is_file():
            return
        with self.path.open("r+b" if ended else "rb") as file:
            file.seek(max(0, self._offset - len(self._last)))
            if file.read(len(self._last)) != self._last:
                self._offset = file.seek(0)
            for line, is_complete in self._lines(file):
                if not is_complete:
                    if ended:
                        yield from self._end_line(line, file)
                    return
                # The position moves past the line with its last metrics, so that a kill loses none.
                waiting: Record | None = None
                for metrics in self._parse(line):
                    if waiting is not None:
                        yield waiting
                    waiting = metrics
                self._offset += len(line)
                self._last = line[-_LAST_LINE_BYTES:]
                if waiting is not None:
                    yield waiting

    def _lines(self, file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
        """Yield the lines from the file's position, each with whether it is complete.

        A progress bar may print megabytes without a newline. Text that it has overwritten with a
        carriage return, and long text without a metric, is read only once.
        """
        for line in file:
            if line.endswith(b"\n"):
                yield line, True
                continue
            read = 0
            if self._prefix:
                read = line.rfind(b"\r") + 1
                prefix = self._prefix.encode()
                if len(line) - read > _LONG_LINE_BYTES and prefix not in line[read:]:
                    read = len(line) - len(prefix)  # the line may end within a prefix
            if read:
                yield line[:read], True
            yield line[read:], False

    def _end_line(self, line: bytes, file: BinaryIO) -> Iterator[Record]:
        try:
            yield from self._parse(line)
            file.write(b"\n")
        except ProgramError:
            file.truncate(self._offset)

    def _parse(self, content: bytes) -> Iterator[Record]:
        """Yield the metrics of a line: after each prefix on standard output, or the whole line of a
        file.
        """
        text = content.decode("utf-8", "replace").strip()
        # after a progress bar, which prints no newline, one line may contain several
        start = text.find(self._prefix)
        while start >= 0 and text:
            text = text[start + len(self._prefix) :].strip()
            metrics, end = self._parsed(text)
            yield metrics
            text = text[end:]
            start = text.find(self._prefix) if self._prefix else -1

    def _parsed(self, text: str) -> tuple[Record, int]:
        """Return the metrics at the start of a string, and the position after them.

        Raises:
            ProgramError: the string does not start with a metric line.
        """
        try:
            # more text may follow on the line, because several ranks may write to it
            content, end = json.JSONDecoder().raw_decode(text)
            line = dict(content)
        except (ValueError, TypeError):
            raise self._invalid(text, "not a JSON object") from None
        for metric in self._metrics:
            score = line.get(metric)
            if score is None or isinstance(score, int | float):
                continue
            kind = "text" if isinstance(score, str) else type(score).__name__
            raise ProgramError(
                f"{metric} is {kind}, not a number: {shortened(json.dumps(score), 80)}",
                str(self.path),
                f'write {{"step": 20, "{metric}": 0.61}}; NaN or null if there is no score',
                metric,
                code="metric-not-a-number",
            )
        try:
            step = _STEP.validate_python(line.get("step"))
        except ValueError:
            raise self._invalid(text, "no non-negative integer step") from None
        numbers: Record = {}
        for name, value in line.items():
            if name in OF_RECORD or not isinstance(value, int | float | None):
                continue
            try:
                numbers[name] = math.nan if value is None else float(value)
            except OverflowError:
                raise self._invalid(text, "a number is too large for a float") from None
        return {**numbers, "step": step}, end

    def _invalid(self, text: str, why: str) -> ProgramError:
        return ProgramError(
            f"invalid metric line ({why}): {shortened(text, 80)}",
            str(self.path),
            f'write {{"step": 20, "{self._metrics[0]}": 0.61}}',
            code="invalid-metric-line",
        )


def _signal_name(number: int) -> str:
    """Return the name of a signal, such as SIGKILL, or ``signal 35``, because most real-time
    signals have no name in Python.
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
