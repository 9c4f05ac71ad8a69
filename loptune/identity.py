"""Assign an id to each run or sweep, and store it in the folder of the run or sweep.

Names and paths do not identify a run: a run that is deleted and started again has the same name and
path, and two people may use the same name on one tracking server.
"""

import json
import uuid
from pathlib import Path

from loptune.errors import StorageError
from loptune.files import storage_error, write_atomically

IDENTITY = "identity.json"  # file in the folder of a run or sweep


def identity(folder: Path, earlier: str = "") -> str:
    """Return the id of the run in a folder; create it on the first call. A moved folder keeps its
    id. A copied folder gets a new id, so that the original and the copy can both continue.

    Args:
        folder: the run's folder, which exists.
        earlier: id to keep if the folder has none yet.

    Raises:
        StorageError: the id cannot be read or written.
    """
    here = str(folder.resolve())
    try:
        known = _read(folder)
        found = known_identity(folder)
        if found is not None and known is not None and known["folder"] == here:
            return found
        if known is None:
            found = earlier
        write_atomically(
            folder / IDENTITY, json.dumps({"id": found or uuid.uuid4().hex, "folder": here})
        )
    except OSError as error:
        raise storage_error("write the run's id", folder, error) from error
    return str(known_identity(folder))


def known_identity(folder: Path) -> str | None:
    """Return the id of the run in a folder. Return None if it has none yet, or if the folder is a
    copy and the original still exists.

    Raises:
        StorageError: the file with the id is damaged.
        OSError: the file cannot be read.
    """
    known = _read(folder)
    if known is None or _is_copy(folder, known):
        return None
    return known["id"]


def _is_copy(folder: Path, known: dict[str, str]) -> bool:
    """Return whether the folder is a copy of the folder in ``known``, and the original still
    exists.
    """
    source = Path(known["folder"])
    if source == folder.resolve():
        return False
    original = _read(source)
    return original is not None and original["id"] == known["id"] and not source.samefile(folder)


def _read(folder: Path) -> dict[str, str] | None:
    try:
        content = json.loads((folder / IDENTITY).read_text("utf-8"))
        return {name: str(content[name]) for name in ("id", "folder")}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"cannot read the run's id: {error}",
            str(folder / IDENTITY),
            "remove the file; the run then gets a new id, and a new run in MLflow",
            code="identity-unreadable",
        ) from None
