"""Top-level error handling of the commands: messages and exit codes."""

import errno
import os
import signal
import sys
from collections.abc import Callable

from trainer.errors import INTERRUPTED, ConfigError, MissingError, StorageError, UserError
from trainer.files import storage_fault


def rank() -> int:
    """Return this process's rank (RANK, default 0)."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of ranks (WORLD_SIZE, default 1)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def run_main(command: Callable[[], int]) -> int:
    """Run a command, print user-facing errors, and return the exit code."""
    try:
        code = command()
        sys.stdout.flush()  # flush now: a failure at interpreter exit could not be handled
        return code
    except UserError as error:
        # a ConfigError is the same on all ranks: print it once per machine
        if os.environ.get("LOCAL_RANK", "0") == "0" or not isinstance(error, ConfigError):
            print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        fault: UserError | None = storage_fault(error)
        output = _lost_output() if error.filename is None else ""
        if output:
            # the reader has exited, as in `trainer ls | head`
            if isinstance(error, BrokenPipeError):
                return 128 + signal.SIGPIPE  # conventional exit code of SIGPIPE
            what = f"cannot write the output: {error.strerror}"
            fault = StorageError(what, output, "redirect it elsewhere")
        if error.errno == errno.EMFILE:
            fault = MissingError("too many open files", "this shell's limit", "ulimit -n 4096")
        if fault is None:
            raise
        print(fault, file=sys.stderr)
        return fault.exit_code


def _lost_output() -> str:
    """If stdout cannot be written, redirect it to /dev/null and return its target; otherwise return
    an empty string.
    """
    try:
        print(flush=True)
    except OSError:
        output = os.readlink("/proc/self/fd/1")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return output
    return ""
