"""Run batches side by side in another process that has a single Ray instance (`sweep.driver.pool`).

The process is separate because Ray changes the environment of its process and may end it.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from loptune import errors
from loptune.errors import ConfigError, UserError
from loptune.files import write_atomically
from loptune.shadowing import LOPTUNE_PACKAGES
from sweep.gate.batch import Batch, BatchResults, batch_space, read_results, unfinished
from sweep.gate.spec import PROGRAM
from sweep.space.file import dump_space, load_space
from sweep.space.spec import SweepSpec

# A project may have its own folder "search_spaces": programs do not import loptune's package of
# this name.
_IMPORTED_PACKAGES = tuple(name for name in LOPTUNE_PACKAGES if name != "search_spaces")
_READ_BYTES = 65_536


@dataclass(frozen=True)
class Place:
    """Where the runs of a batch start."""

    folder: Path
    # whether it is a checkout, whose packages take precedence over installed ones
    is_checkout: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that the runs need in addition to the process's own."""
        return {"PYTHONPATH": _import_path(self.folder)} if self.is_checkout else {}


class RunPool:
    """Runs batches side by side. The process and its Ray instance start with the first unfinished
    batch. They run until the end of the ``with`` block, unless a batch needs a process in another
    folder.

    Args:
        folder: contains the program's search space; the sweeps go to its subfolder "runs".
        resume: command that continues after an interruption.
        parallel: number of parallel runs; None: as many as fit on the machine.
    """

    def __init__(self, folder: Path, *, resume: str, parallel: int | None = None) -> None:
        self._folder = folder.resolve()
        self._resume = resume
        self._parallel = parallel
        self._waiting: deque[tuple[str, Place]] = deque()
        self._running: set[str] = set()
        self._ended: dict[str, UserError | None] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._place = Place(Path())  # where the process was started
        self._unread = b""

    def __enter__(self) -> "RunPool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(in_order=error is None)

    @property
    def _runs_dir(self) -> Path:
        return self._folder / "runs"

    @property
    def _log(self) -> Path:
        return self._runs_dir / "driver.log"

    def submit(self, batch: Batch, place: Place) -> None:
        """Start a batch, or resume it. A finished batch is only read; runs that the machine killed
        are run again.

        Raises:
            ConfigError: the program does not accept the configuration.
        """
        path = self._folder / "spaces" / f"{batch.name}.yaml"
        left = unfinished(self._runs_dir, batch.name)
        if not left and not read_results(self._runs_dir, batch.name).killed:
            self._ended[batch.name] = None
            return
        if not (self._runs_dir / batch.name / "space.lock.yaml").is_file():
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, dump_space(batch_space(self._folder, batch)))
        self._waiting.append((batch.name, place))
        self._send_waiting()

    def wait(self, timeout: float) -> dict[str, BatchResults | UserError]:
        """Wait until a batch has ended. Return batch name -> results for all batches that have
        ended since the last call, or the error if a batch could not run; empty if none has ended
        within ``timeout``.

        Args:
            timeout: maximum time to wait [s].

        Raises:
            UserError: no batch can run, or the process of the batches exited.
        """
        deadline = time.monotonic() + timeout
        while not self._ended and self._running and time.monotonic() < deadline:
            self._read(deadline - time.monotonic())
        ended = self._ended
        self._ended = {}
        results: dict[str, BatchResults | UserError] = {}
        for name, error in ended.items():
            results[name] = error or self._results(name)
        self._send_waiting()
        return results

    def _results(self, name: str) -> BatchResults | UserError:
        left = unfinished(self._runs_dir, name)
        if not left:
            return read_results(self._runs_dir, name)
        return ConfigError(
            f"{name} is unfinished: {left}",
            str(self._log),
            f"read its last lines, then `{self._resume}` continues",
            code="batch-unfinished",
        )

    def _send_waiting(self) -> None:
        """Send the next batches to the process. loptune's own trainer imports the user's code into
        the process, so a batch of such a program that starts in another folder needs a new process.
        """
        while self._waiting:
            name, place = self._waiting[0]
            if self._process is not None and place != self._place and self._imports_code:
                if self._running:
                    return
                self._close(in_order=True)
            if self._process is None:
                self._start(place)
            self._waiting.popleft()
            self._running.add(name)
            self._write(
                {"name": name, "place": str(place.folder.resolve()), "variables": place.variables}
            )

    @cached_property
    def _program(self) -> SweepSpec:
        """The search space of the program, which stays the same while its runs train."""
        return load_space(self._folder / PROGRAM)

    @property
    def _imports_code(self) -> bool:
        return self._program.external is None

    def _start(self, place: Place) -> None:
        """Start the process."""
        settings = {"folder": str(self._folder), "resume": self._resume, "cpus": self._cpus()}
        environment = dict(os.environ)
        if self._imports_code:
            environment |= place.variables
        # -P prevents a user's own sweep.py in the folder from being started instead.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sweep.driver", json.dumps(settings)],
            cwd=place.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._place = place
        self._unread = b""

    def _cpus(self) -> int | None:
        """Return the number of CPUs that all runs together may use; None: all CPUs."""
        if self._parallel is None:
            return None
        return self._parallel * self._program.resources.cpus_per_trial

    def _write(self, line: dict[str, Any] | None) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process has ended; `_read` reports this

    def _read(self, timeout: float) -> None:
        """Wait for answers of the process, at most ``timeout`` seconds, and store them.

        Raises:
            UserError: no batch can run, or the process exited.
        """
        assert self._process is not None and self._process.stdout is not None
        answers = self._process.stdout.fileno()
        ready, _, _ = select.select([answers], [], [], max(0.0, timeout))
        if not ready:
            return
        content = os.read(answers, _READ_BYTES)
        if not content:
            raise self._process_ended()
        *lines, self._unread = (self._unread + content).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            error = None if answer["error"] is None else _raised(answer["error"])
            if "name" in answer:
                self._running.remove(answer["name"])
                self._ended[answer["name"]] = error
            elif error is not None:
                raise error

    def _process_ended(self) -> UserError:
        return ConfigError(
            f"{' and '.join(sorted(self._running))} did not finish, because their process exited",
            str(self._log),
            f"read its last lines, then `{self._resume}` continues",
            code="batch-unfinished",
        )

    def _close(self, *, in_order: bool) -> None:
        """End the process, and wait for it. With ``in_order``, its batches finish first; otherwise
        it stops their runs.
        """
        process = self._process
        self._process = None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None
        try:
            if in_order:
                process.stdin.write(b"null\n")
            process.stdin.close()
        except BrokenPipeError:
            pass  # the process has already ended
        try:
            process.wait()
        except KeyboardInterrupt:
            process.kill()
            raise
        finally:
            process.stdout.close()


def _raised(fields: dict[str, str]) -> UserError:
    """Return the error that the process has sent."""
    kind: type[UserError] = getattr(errors, fields["kind"], errors.StorageError)
    place = (fields["what"], fields["where"], fields["hint"], fields["key"])
    return kind(*place, code=fields["code"])


def _import_path(place: Path) -> str:
    """Return the PYTHONPATH for a checkout, so that it imports its own packages instead of an
    editable install. Folders that contain a module with the name of a loptune package are left out.
    """
    folders = []
    for folder in (place / "src", place):
        shadows = any(
            (folder / name).exists() or (folder / f"{name}.py").exists()
            for name in _IMPORTED_PACKAGES
        )
        if folder.is_dir() and not shadows:
            folders.append(str(folder))
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*folders, before] if before else folders)
