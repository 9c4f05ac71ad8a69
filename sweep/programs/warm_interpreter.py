"""Start trials of a Python command from an interpreter that has imported ``program.preload``.

`multiprocessing.forkserver` would start and end a trial faster: a script that imports torch and
transformers took 2.9 s instead of 10.3 s (medians of seven alternating runs, on a machine with a
load of 15 per core). But its processes exit without calling exit handlers or closing the script's
files, so a script could lose its last lines. It also hides an import that fails, and does not
report that an import has started threads or used a GPU.
"""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

_logger = logging.getLogger(__name__)

_HEADER = struct.Struct("!I")
_PER_TRIAL = ("LOPTUNE_CONFIG", "LOPTUNE_SEED", "LOPTUNE_OUT", "LOPTUNE_RESUME")


def is_warmable(words: Sequence[str]) -> bool:
    """Return whether `warm` can run a command line: ``python [-P] SCRIPT`` or ``python [-P] -m
    MODULE`` by the sweep's own interpreter, without other interpreter options. Not a folder
    with a ``__main__.py``.
    """
    if not words or words[0] not in ("python", sys.executable):
        return False
    rest = list(words[1:])
    if rest[:1] == ["-P"]:
        rest = rest[1:]
    if rest[:1] == ["-m"]:
        return len(rest) > 1
    return bool(rest) and not rest[0].startswith("-") and not Path(rest[0]).is_dir()


class CannotForkError(Exception):
    """The interpreter cannot run a trial; the message has the reason."""


class InterpreterExitedError(CannotForkError):
    """The interpreter has exited, so it cannot run other trials either."""


class WarmProcess:
    """A forked trial, with the methods of `subprocess.Popen` that a rank uses."""

    def __init__(self, pid: int, interpreter: "WarmInterpreter") -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._interpreter = interpreter

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._look(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code.

        Raises:
            subprocess.TimeoutExpired: the process is still running.
        """
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            answer = self._interpreter.answer(timeout)
            if answer is not None:
                # no code: the interpreter has died, and the trial with it
                self.returncode = int(answer.get("code", -signal.SIGKILL))
        return self.returncode


class WarmInterpreter:
    """A process that has imported modules and forks trials on request. It ends with this process.

    Args:
        modules: the modules that it imports.
        environment: environment of its trials, without the variables of a single trial.
    """

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self.made_for = (tuple(modules), dict(environment), os.getcwd())
        self._connection, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("warm.py")),
                    str(theirs.fileno()),
                    *modules,
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the interpreter, which is the parent of its trials' supervisors."""
        return self._process.pid

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], output: BinaryIO, lifeline: int
    ) -> WarmProcess:
        """Fork a trial and return it.

        Args:
            words: the command line, without the interpreter.
            environment: environment of the trial.
            output: file for its standard output.
            lifeline: read end of a pipe; the trial is killed when the other end is closed.

        Raises:
            CannotForkError: this interpreter cannot run the trial; a new process must run it.
        """
        request = json.dumps({"words": list(words), "environment": dict(environment)}).encode()
        try:
            socket.send_fds(
                self._connection, [_HEADER.pack(len(request))], [output.fileno(), 2, lifeline]
            )
            self._connection.sendall(request)
        except OSError as error:
            raise InterpreterExitedError(f"its interpreter has exited: {error.strerror}") from error
        answer = self.answer(None)
        if not answer:
            raise InterpreterExitedError("its interpreter has exited")
        if "problem" in answer:
            raise CannotForkError(answer["problem"])
        return WarmProcess(int(answer["pid"]), self)

    def answer(self, timeout: float | None) -> dict[str, Any] | None:
        """Return the interpreter's next message: an empty mapping if it has exited, None after
        ``timeout`` seconds without a message.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            with contextlib.suppress(InterruptedError):
                if not select.select([self._connection], [], [], left)[0]:
                    return None
                break
        try:
            header = self._connection.recv(_HEADER.size, socket.MSG_WAITALL)
            if len(header) < _HEADER.size:
                return {}
            content = self._connection.recv(_HEADER.unpack(header)[0], socket.MSG_WAITALL)
            answer: dict[str, Any] = json.loads(content)
            return answer
        except (OSError, ValueError):
            return {}

    def close(self) -> None:
        """Stop the interpreter and its running trial."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


# the interpreter of this process; None before the first trial, and after it was closed
_current: WarmInterpreter | None = None


def close_interpreter() -> None:
    """Stop the interpreter of this process, if any; the next trial starts a new one."""
    global _current
    if _current is not None:
        _current.close()
        _current = None


def start_warm(
    modules: Sequence[str],
    words: Sequence[str],
    environment: Mapping[str, str],
    output: BinaryIO,
    lifeline: int,
) -> WarmProcess | None:
    """Start a trial in a fork of this rank's interpreter. If that is not possible, log the reason
    as a warning and return None. The first call starts the interpreter; a call with other modules,
    another environment or another working directory replaces it.
    """
    global _current
    shared = {name: value for name, value in environment.items() if name not in _PER_TRIAL}
    if _current is not None and _current.made_for != (tuple(modules), shared, os.getcwd()):
        close_interpreter()
    if _current is None:
        _current = WarmInterpreter(modules, shared)
    try:
        return _current.start(words[1:], environment, output, lifeline)
    except CannotForkError as error:
        _logger.warning("preload is not used: %s", error)
        if isinstance(error, InterpreterExitedError):
            close_interpreter()
        return None
