"""Run and sweep folders: names and locking."""

import fcntl
import os
import re
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from loptune.errors import ConfigError, NameInUseError, shortened
from loptune.files import storage_error

MAX_NAME_LENGTH = 64
NAME_RULE = (
    f"1 to {MAX_NAME_LENGTH} letters, digits, dots, dashes and underscores, starting with a "
    "letter or digit"
)
_RULE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_LENGTH - 1}}}")
CAMPAIGN = "campaign"  # locked by a process that records events of a campaign
# locked by the process that decides which training runs a campaign needs
RUNNER = "the runner of campaign"
RUNS = "the runs folder of"  # locked by the process that starts the runs in the folder
MEASUREMENT = "the folder"  # locked by a process that measures seed noise in it
_STARTING = "a process that has just started"
_LOCK_WAIT_S = 0.5  # longer than another process holds the lock in `lock_owner`
_OWN_FOLDER = Path(__file__).resolve().parent


SHUTDOWN_S = 900  # time for the last step and its checkpoint after a signal [s]


def command_line(*words: str, runs_dir: Path | None = None) -> str:
    """Return a command for a message, quoted for a shell. It works in the current folder: it
    includes ``--runs-dir`` unless the runs folder is the default.
    """
    place: list[str] = []
    if runs_dir is not None and runs_dir.resolve() != Path("runs").resolve():
        here = Path.cwd()
        near = runs_dir.relative_to(here) if runs_dir.is_relative_to(here) else runs_dir
        place = ["--runs-dir", str(near)]
    return shlex.join([*words, *place])


def trainer_words(ranks: int) -> list[str]:
    """Return the words that start a command of ``trainer`` with some ranks.

    torchrun kills its ranks 30 s after it has forwarded a signal. The words set a longer limit,
    because a step of a large model and its checkpoint can take longer.
    """
    if ranks == 1:
        return ["trainer"]
    launch = ["torchrun", "--nproc-per-node", str(ranks), "--shutdown-timeout", str(SHUTDOWN_S)]
    return [*launch, "-m", "trainer"]


def resume_command(name: str, runs_dir: Path, world_size: int = 1) -> str:
    """Return the command that resumes a run with ``world_size`` ranks."""
    return command_line(*trainer_words(world_size), "resume", name, runs_dir=runs_dir)


def is_name(text: str) -> bool:
    """Return whether the text is a valid run name (see `NAME_RULE`)."""
    return _RULE.fullmatch(text) is not None


def check_name(name: str) -> str:
    """Validate a run name and return it.

    Raises:
        ConfigError: invalid name.
    """
    if not is_name(name):
        raise ConfigError(
            f"invalid name: {shortened(name, 80)!r}",
            "--name",
            f"use {NAME_RULE}",
            code="invalid-name",
        )
    return name


def lock_owner(folder: Path) -> str | None:
    """Return a description of the process that has the folder's lock, or None.

    Raises:
        StorageError: the lock file cannot be read.
    """
    path = folder / "lock"
    try:
        lock = path.open(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_error("read the lock", path, error, "not-read") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return lock.read() or _STARTING
    return None


def raise_if_locked(folder: Path, what: str = "run") -> None:
    """Raise if another process has the folder's lock. ``what`` is the kind of thing that the folder
    contains, for the error.

    Raises:
        NameInUseError: the lock is held; the error shows the process.
        StorageError: the lock file cannot be read.
    """
    if (other := lock_owner(folder)) is not None:
        raise _locked_error(folder, other, what)


def run_path(given: str, runs_dir: Path) -> Path:
    """Resolve a run name to its folder in ``runs_dir``; anything else is treated as a path."""
    named = runs_dir / given
    return named if is_name(given) and not Path(given).exists() and named.is_dir() else Path(given)


@contextmanager
def lock_folder(
    folder: Path, what: str = "run", *, create: bool = True, patience: float = _LOCK_WAIT_S
) -> Iterator[None]:
    """Lock a folder for this process. The lock is released when the process exits for any reason.

    Args:
        folder: folder to lock.
        what: kind of thing that the folder contains, for the error.
        create: whether a missing folder is created. Do not set it for a folder that is known to
            exist: if the folder was moved away in the meantime, it could not be moved back.
        patience: seconds to wait for another process.

    Raises:
        NameInUseError: another process has the lock.
        StorageError: the folder cannot be written, or is missing.
    """
    path = folder / "lock"
    try:
        if create:
            folder.mkdir(parents=True, exist_ok=True)
        folder.stat()  # raises if it is missing: FileLock would create it
        held = FileLock(path).acquire(timeout=patience, poll_interval=0.01)
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}", "utf-8")
    except Timeout:
        raise _locked_error(folder, path.read_text("utf-8") or _STARTING, what) from None
    except OSError as error:
        raise storage_error(f"write the {what}'s folder", path, error) from None
    with held:
        yield


def check_folder(folder: Path) -> None:
    """Raise if a folder contains a module that would shadow the package ``loptune`` in the workers
    of a sweep. Workers find the other packages through ``loptune``.

    Raises:
        ConfigError: the folder contains such a file or package.
    """
    for path in (folder / "loptune.py", folder / "loptune" / "__init__.py"):
        if path.is_file() and path.parent.resolve() != _OWN_FOLDER:
            place = path if path.name != "__init__.py" else path.parent
            raise ConfigError(
                f"{place.name} would shadow the package loptune in the workers of a sweep",
                str(place),
                f"rename {place.name}, or start from another folder",
                code="shadowed-package",
            )


def _locked_error(folder: Path, other: str, what: str) -> NameInUseError:
    hint = "wait for it, stop it, or choose another --name"
    if what == "sweep":
        watch, stop = (
            command_line("sweep", verb, folder.name, runs_dir=folder.parent)
            for verb in ("status", "stop")
        )
        hint = f"watch it with `{watch}`, stop it with `{stop}`, or choose another --name"
    name = folder.name
    if what == MEASUREMENT:
        hint = "wait for it, stop it, or choose another --output"
    if what == RUNNER:
        name = folder.parent.name
        hint = "wait for it, or stop it; it also handles changes proposed in the meantime"
    if what == RUNS:
        name = folder.parent.name
        hint = "an earlier process is still stopping its runs: try again in a minute"
    if what == CAMPAIGN:
        hint = "try again in a minute: a campaign is locked only while its results are recorded"
    return NameInUseError(
        f"{what} {name} is in use by {other}",
        str(folder / "lock"),
        hint,
        key="name",
        code="name-held",
    )
