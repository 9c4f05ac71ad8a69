"""Pass the environment of the user who started a sweep to the commands of its trials.

Ray and the sweep set variables in Ray's workers that a command must not inherit: with
RAY_AUTH_MODE=token, for example, a command that starts its own Ray writes a token into the home
folder.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from loptune.files import write_atomically

# variables that `ray.init` sets in this process and each worker
_BY_RAY = {"PYTHONBREAKPOINT": "ray.util.rpdb.", "RAY_CLIENT_MODE": ""}
# variables by which the ranks of the trial find each other; a command starts its own ranks
_OF_A_RANK = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_set_here: dict[str, str] = {}


def set_for_sweep(name: str, value: str) -> None:
    """Set a variable of this process that commands do not inherit."""
    os.environ[name] = value
    _set_here[name] = value


def typed_environment() -> dict[str, str]:
    """Return this process's environment without the variables that the sweep or Ray set."""
    environment = {}
    for name, value in os.environ.items():
        is_sweeps = _set_here.get(name) == value
        if not is_sweeps and not _is_rays(name, value):
            environment[name] = value
    return environment


def write_environment(path: Path, changes: Mapping[str, str] | None = None) -> None:
    """Write `typed_environment` with changed variables to a file that only this user can read.

    Raises:
        OSError: the folder cannot be written.
    """
    environment = typed_environment() | dict(changes or {})
    write_atomically(path, json.dumps(environment), mode=0o600)


def command_environment(path: Path, of_rank: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a trial's command, without the rank's own variables.

    ``path`` is the file of `write_environment`. Without this file, on a cluster, return the
    environment that the rank has from its node, without the variables of Ray and Tune.
    """
    if path.is_file():
        typed: dict[str, str] = json.loads(path.read_text("utf-8"))
        return typed
    environment = {}
    for name, value in of_rank.items():
        is_ranks = name in _OF_A_RANK or name.startswith(("RAY_", "TUNE_"))
        if not is_ranks and not _is_rays(name, value):
            environment[name] = value
    return environment


def _is_rays(name: str, value: str) -> bool:
    """Return whether Ray set this variable."""
    return name in _BY_RAY and value.startswith(_BY_RAY[name])
