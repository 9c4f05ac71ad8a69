"""The process of one trial of a command: started, read and ended by a rank."""

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sweep.programs.base import Assignment
from trainer.errors import ConfigError, printable, shortened
from trainer.files import read_json_lines
from trainer.metrics.declared import CORRECTNESS_FILE
from trainer.tracking.shipping import METRICS_FILE
from trainer.tracking.tracker import Tracker

_POLL_S = 0.1
_SAVE_S = 300.0  # for a command to save and leave when it is asked to
_LEAVE_S = 5.0  # for one whose work is not needed any more
_PREFIX = "[loptune]"  # of lines of metrics on standard output
_SECONDS = "time/evaluation"  # of the process since the line before: the cost of a trial
_NO_METRICS = ("step", "time", "nonfinite", "time/step")  # of a line: what is recorded of it otherwise
# Of the rank that takes care of the command: its own ranks, and a Ray of its own, begin without.
_OF_A_RANK = (
    "RAY_ADDRESS",
    "RAY_AUTH_TOKEN",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
)
_LAST_LINES = 5


class CommandRun:
    """One trial of a command, of which a rank takes care."""

    total_steps = 0

    def __init__(
        self, assignment: Assignment, words: Callable[[Path], list[str]], values: Mapping[str, Any], seed: int
    ) -> None:
        self._run_dir = assignment.context.run_dir
        self._folder = self._run_dir / "out"
        self._metric = assignment.metric
        self._stop_file = assignment.stop_file
        self._stall_s = assignment.stall_timeout_s
        self._config = self._run_dir / "config.json"
        self._errors = self._run_dir / "stderr.log"
        self._words = words(self._folder)
        self._values = values
        self._seed = seed
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._waiting: deque[dict[str, Any]] = deque()  # lines that are read and not recorded
        self._files = [_Lines(self._folder / METRICS_FILE, ""), _Lines(self._run_dir / "stdout.log", _PREFIX)]
        self.step = 0
        self.done = self.stopping = False
        self._tracker = Tracker(assignment.config, assignment.context, must_connect=False, declared=False)

    def resume(self) -> int:
        """Read what an earlier process wrote and nobody recorded; the next one starts with the first period."""
        self._is_used = self._folder.is_dir()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._config.write_text(json.dumps(dict(self._values), indent=1), encoding="utf-8")
        record = self._run_dir / METRICS_FILE
        lines = [line for line, _ in read_json_lines(record)] if record.exists() else []
        self.step = max((int(line["step"]) for line in lines), default=0)
        self._is_evaluated = any(self._metric in line for line in lines)
        self._read(ended=True)
        recorded = {(line["step"], name) for line in lines for name in line}
        self._waiting = deque(
            line
            for line in self._waiting
            if any((line["step"], name) not in recorded for name in line if name not in _NO_METRICS)
        )
        return self.step

    def _start(self) -> subprocess.Popen[bytes]:
        # The rank has written its own lines by now.
        self._errors_before = self._errors.stat().st_size if self._errors.exists() else 0
        self._moved = self._counted = time.monotonic()
        environment = {name: value for name, value in os.environ.items() if name not in _OF_A_RANK}
        environment |= {
            "LOPTUNE_CONFIG": str(self._config),
            "LOPTUNE_SEED": str(self._seed),
            "LOPTUNE_OUT": str(self._folder),
            "LOPTUNE_RESUME": str(int(self._is_used)),
            "PYTHONUNBUFFERED": "1",  # so that lines on standard output are seen at once
        }
        theirs, self._lifeline = os.pipe()
        with (self._run_dir / "stdout.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sweep.programs.launch", str(theirs), *self._words],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        os.close(theirs)
        return process

    def run_period(self) -> Mapping[str, float]:
        """Record lines up to the next evaluation, and return its metrics.

        Raises:
            ConfigError: a line cannot be read, or the command ended without an evaluation.
            RuntimeError: it failed, or has been silent for too long.
        """
        self._process = self._process or self._start()
        while True:
            code = self._process.poll()  # before its last lines are read
            self._read(ended=code is not None)
            while self._waiting:
                line = self._waiting.popleft()
                self._record(line)
                if self._metric in line:
                    return line
            if self._stop_file.exists():
                self.request_stop()
                return {"step": self.step}
            if code is not None:
                self._finish(code)
                return {"step": self.step}
            if time.monotonic() - self._moved > self._stall_s:
                raise RuntimeError(f"the command has written no line for {self._stall_s:g} s")
            time.sleep(_POLL_S)

    def request_stop(self) -> None:
        """Have the command save and leave."""
        self.stopping = True
        self._end(_SAVE_S)
        self._read(ended=True)
        while self._waiting:
            self._record(self._waiting.popleft())

    def save_checkpoint(self) -> Path:
        """Return the command's folder, which it looks after itself."""
        return self._folder

    def close(self, status: str = "FINISHED") -> None:
        """End the process and the record."""
        self._end(_LEAVE_S)
        if self._process is not None:
            self._tracker.log({_SECONDS: self._seconds()}, self.step)
        correctness = self._folder / CORRECTNESS_FILE
        if correctness.is_file():
            shutil.copy(correctness, self._run_dir / CORRECTNESS_FILE)
        self._tracker.close(status)

    def _read(self, ended: bool = False) -> None:
        for file in self._files:
            if ended:
                file.end_line()
            self._waiting.extend(file.new())

    def _record(self, line: Mapping[str, Any]) -> None:
        self.step = int(line["step"])
        self._moved = time.monotonic()
        self._is_evaluated |= self._metric in line
        metrics = {name: value for name, value in line.items() if name not in _NO_METRICS}
        self._tracker.log({**metrics, _SECONDS: self._seconds()}, self.step)

    def _seconds(self) -> float:
        before, self._counted = self._counted, time.monotonic()
        return self._counted - before

    def _finish(self, code: int) -> None:
        if code != 0:
            cause = f"ended with {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
            raise RuntimeError(f"the command {cause}: {self._last_errors()}")
        if not self._is_evaluated:
            hint = f'append lines such as {{"step": 20, "{self._metric}": 0.61}}'
            raise ConfigError(f"the command ended without a line with {self._metric}", str(self._files[0].path), hint)
        self.done = True

    def _last_errors(self) -> str:
        with self._errors.open("rb") as file:
            file.seek(self._errors_before)
            lines = file.read().decode("utf-8", "replace").split("\n")
        told = [printable(line.strip()) for line in lines if line.strip()]
        return " | ".join(told[-_LAST_LINES:]) or "it wrote nothing to standard error"

    def _end(self, patience_s: float) -> None:
        """End the process with everything it started, first by SIGTERM."""
        process = self._process
        if process is None or self._lifeline < 0:
            return
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
        os.close(self._lifeline)  # which kills whatever is left
        self._lifeline = -1
        process.wait()


class _Lines:
    """The lines of metrics that a file gains."""

    def __init__(self, path: Path, prefix: str) -> None:
        self.path = path
        self._prefix = prefix
        self._offset = 0
        self._last = b""  # line before the offset

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the lines since the last call; all of a file that has been written anew.

        Raises:
            ConfigError: a line is not one of metrics.
        """
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(max(0, self._offset - len(self._last)))
            if file.read(len(self._last)) != self._last:
                self._offset = 0
            file.seek(self._offset)
            whole = file.read().rpartition(b"\n")[0]
        if not whole:
            return
        self._offset += len(whole) + 1
        lines = whole.split(b"\n")
        self._last = lines[-1] + b"\n"
        for line in lines:
            metrics = self._parse(line)
            if metrics is not None:
                yield metrics

    def end_line(self) -> None:
        """End the last line of a process that is gone: a whole one counts, a torn one is cut off."""
        if not self.path.is_file():
            return
        with self.path.open("r+b") as file:
            content = file.read()
            start = content.rfind(b"\n") + 1
            if start == len(content):
                return
            try:
                self._parse(content[start:])
                file.write(b"\n")
            except ConfigError:
                file.truncate(start)

    def _parse(self, content: bytes) -> dict[str, Any] | None:
        """Return the metrics of a line; None where it has none."""
        text = content.decode("utf-8", "replace").strip()
        start = text.find(self._prefix)  # behind a progress bar, which ends no line
        if start < 0 or not text:
            return None
        text = text[start + len(self._prefix) :].strip()
        try:
            line = dict(json.JSONDecoder().raw_decode(text)[0])  # another rank may write behind it
            values = {name: math.nan if value is None else value for name, value in line.items()}
            numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
            return {**numbers, "step": int(line["step"])}
        except (ValueError, TypeError, KeyError, OverflowError):
            hint = 'write {"step": 20, "eval/accuracy": 0.61}'
            raise ConfigError(f"not a line of metrics: {shortened(text, 80)}", str(self.path), hint) from None
