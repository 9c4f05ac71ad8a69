"""The folder of a run: its name, and the lock that keeps two processes from writing into it."""

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.errors import ConfigError, NameHeldError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> str:
    """The name, if it is fit for a folder.

    Raises:
        ConfigError: path separators, control characters, too long, or starting with a dot or dash.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"not a usable name: {name[:80]!r}",
            "--name",
            "use up to 64 letters, digits, '.', '_' and '-', starting with a letter or digit",
        )
    return name


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process; the lock ends with the process, however it ends.

    Raises:
        NameHeldError: another process holds it; names its pid and host.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise NameHeldError(
                f"{folder.name} is in use by {holder}", str(folder), "wait for it, stop it, or give another --name"
            ) from None
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
