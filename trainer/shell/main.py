"""The frame of a command line: which exit code a failure has, and how it is printed."""

import errno
import os
import signal
import sys
from collections.abc import Callable

from trainer.errors import INTERRUPTED, ConfigError, MissingError, StorageError, UserError
from trainer.files import storage_fault


def rank() -> int:
    """Return the number of this process among those of the run."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return how many processes the run has."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def run_main(command: Callable[[], int]) -> int:
    """Carry out a command, print what stops it, and return the exit code."""
    try:
        code = command()
        sys.stdout.flush()  # else the interpreter would fail to, after its last word
        return code
    except UserError as error:
        # all ranks of a machine have the same configuration
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
            if isinstance(error, BrokenPipeError):  # its reader has gone, as in `trainer ls | head`
                return 128 + signal.SIGPIPE  # like any program that a closed pipe ends
            what = f"cannot write the output: {error.strerror}"
            fault = StorageError(what, output, "send it elsewhere")
        if error.errno == errno.EMFILE:
            fault = MissingError("too many open files", "this shell's limit", "ulimit -n 4096")
        if fault is None:
            raise
        print(fault, file=sys.stderr)
        return fault.exit_code


def _lost_output() -> str:
    """Return where standard output goes if it takes no empty line, and drop it; else nothing."""
    try:
        print(flush=True)
    except OSError:
        output = os.readlink("/proc/self/fd/1")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return output
    return ""
