"""Environment of ranks on a cluster: plain variables are sent through Ray, credentials through a
file in the sweep's folder.

Ray writes a job's environment into its logs and exposes it in the jobs API.
"""

import json
import os
from pathlib import Path

from loptune.credentials import split_credentials
from loptune.files import write_atomically

_FORWARDED = ("MLFLOW_", "LOPTUNE_", "HF_HOME", "HF_HUB_OFFLINE")
_SERVERS = ("MLFLOW_AUTH_", "MLFLOW_FLASK_")  # for the MLflow server only; ranks do not need them
_SECRET = ("PASSWORD", "TOKEN", "SECRET", "KEY")


def plain_environment() -> dict[str, str]:
    """Return the driver's variables that ranks need and that are not secret."""
    return {name: value for name, value in _forwarded().items() if not _is_secret(name, value)}


def write_credentials(path: Path) -> None:
    """Write the driver's credentials to a file with mode 600; remove the file if there are none.

    Raises:
        OSError: the folder cannot be written.
    """
    secrets = {name: value for name, value in _forwarded().items() if _is_secret(name, value)}
    if secrets:
        write_atomically(path, json.dumps(secrets), mode=0o600)
    else:
        path.unlink(missing_ok=True)


def take_credentials(path: Path) -> None:
    """Load the credentials file, if it exists, into this process's environment."""
    if path.is_file():
        os.environ.update(json.loads(path.read_text("utf-8")))


def _forwarded() -> dict[str, str]:
    forwarded = {}
    for name, value in os.environ.items():
        if name.startswith(_FORWARDED) and not name.startswith(_SERVERS):
            forwarded[name] = value
    return forwarded


def _is_secret(name: str, value: str) -> bool:
    return any(word in name for word in _SECRET) or bool(split_credentials(value)[2])
