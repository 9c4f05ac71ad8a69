"""The frame of a command line: which exit code a failure has, and how it is printed."""

import os
import signal
import sys
from collections.abc import Callable

from trainer.errors import INTERRUPTED, ConfigError, StorageError, UserError
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
        # all ranks have the same configuration
        if rank() == 0 or not isinstance(error, ConfigError):
            print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has gone, as in `trainer ls | head`
        _drop_output()
        return 128 + signal.SIGPIPE  # like any program that a closed pipe ends
    except OSError as error:
        unnamed = error.filename is None  # so it may be the output's
        fault = (_output_fault() if unnamed else None) or storage_fault(error)
        if fault is None:
            raise
        print(fault, file=sys.stderr)
        return fault.exit_code


def _output_fault() -> StorageError | None:
    """Return the fault of a standard output that takes no more, which is given an empty line."""
    try:
        print(flush=True)
    except OSError as error:
        target = os.path.realpath("/proc/self/fd/1")
        _drop_output()
        what = f"cannot write the output: {error.strerror}"
        return StorageError(what, f"standard output, {target}", "send it elsewhere, then go on")
    return None


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
