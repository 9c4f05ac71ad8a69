"""Top-level error handling of the commands: messages and exit codes."""

import contextlib
import errno
import hashlib
import logging
import os
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from loptune.errors import INTERRUPTED, MissingError, StorageError, UserError
from loptune.extras import missing_extra
from loptune.files import as_storage_error
from loptune.temporary import MARK
from loptune.terminal.escaped_output import escaped_output

_logger = logging.getLogger(__name__)


def rank() -> int:
    """Return this process's rank (RANK, default 0)."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of ranks (WORLD_SIZE, default 1)."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def run_main(command: Callable[[], int]) -> int:
    """Run a command, print user-facing errors, and return the exit code. Other exceptions are
    raised.
    """
    _open_closed_streams()
    _ensure_home()
    try:
        with escaped_output():
            code = command()
        sys.stdout.flush()  # flush now: a failure at interpreter exit could not be handled
        return code
    except UserError as error:
        _logger.debug("raised by", exc_info=True)
        if _is_first_to_report(str(error)):
            print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        print(missing, file=sys.stderr)
        return missing.exit_code
    except OSError as error:
        fault: UserError | None = as_storage_error(error)
        output = _lost_output() if error.filename is None else ""
        if output:
            # the reader has exited, as in `trainer ls | head`
            if isinstance(error, BrokenPipeError):
                return 128 + signal.SIGPIPE  # conventional exit code of SIGPIPE
            what = f"cannot write the output: {error.strerror}"
            fault = StorageError(what, output, "redirect it elsewhere", code="output-not-written")
        if error.errno == errno.EMFILE:
            fault = MissingError(
                "too many open files", "this shell's limit", "ulimit -n 4096", code="too-many-files"
            )
        if fault is None:
            raise
        print(fault, file=sys.stderr)
        return fault.exit_code


def _open_closed_streams() -> None:
    """Open standard streams that the caller has closed (``trainer ls >&-``) on /dev/null.

    In this case Python sets ``sys.stdout`` to None, and the next file that is opened would become
    the standard output of every child process.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, mode))


def _ensure_home() -> None:
    """Set HOME to a private temporary folder if this user has no home folder, as in a container
    with an unknown user id. MLflow cannot even be imported without one.
    """
    try:
        Path.home()
    except RuntimeError:
        folder = Path(tempfile.gettempdir()) / f"loptune-home-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
        is_private = stat.S_IMODE(status.st_mode) == 0o700 and status.st_uid == os.getuid()
        if not stat.S_ISDIR(status.st_mode) or not is_private:  # made by another user
            folder = Path(tempfile.mkdtemp(prefix="loptune-home-"))
        os.environ["HOME"] = str(folder)


def _is_first_to_report(error: str) -> bool:
    """Return whether no other rank on this machine has printed the same error.

    The ranks of a run fail at different times, and the launcher kills the other ranks as soon as
    the first one has exited. Therefore the first rank that fails prints the error. Different errors
    are all printed.
    """
    if world_size() == 1:
        return True
    import psutil  # needed only by a failing rank

    launcher = psutil.Process(os.getppid())
    # torchrun and `accelerate launch` give every rank FOLDER/RANK/error.json, and remove FOLDER
    shared = os.environ.get("TORCHELASTIC_ERROR_FILE")
    folder = Path(shared).parents[1] if shared else Path(tempfile.gettempdir())
    text = f"{launcher.pid} {launcher.create_time()} {error}"
    mark = folder / f"{MARK}{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    except OSError:
        return True  # printing an error twice is better than not at all
    return True


def _lost_output() -> str:
    """If stdout cannot be written, redirect it to /dev/null and return its former target; otherwise
    return an empty string.
    """
    try:
        print(flush=True)
    except OSError:
        output = os.readlink("/proc/self/fd/1")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return output
    return ""
