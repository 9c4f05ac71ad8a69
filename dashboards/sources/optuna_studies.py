"""Read the trials of Optuna studies: ``study.db`` (SQLite) and journal files.

The only module of dashboards that imports Optuna.
"""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from dashboards.sources.content import MAX_BYTES, database_tables, is_database
from dashboards.sources.directions import DIRECTION
from loptune.errors import StorageError, first_line
from loptune.extras import require
from loptune.files import open_regular
from loptune.sqlite_url import sqlite_url
from loptune.temporary import temporary_folder

if TYPE_CHECKING:
    from optuna.storages import BaseStorage, RDBStorage

_JOURNAL_START = b'{"op_code":'


def is_study(path: Path) -> bool:
    """Return whether a file is an Optuna database or journal."""
    if is_database(path):
        return {"trials", "studies"} <= database_tables(path)
    with open_regular(path) as file:
        return file.read(64).replace(b" ", b"").startswith(_JOURNAL_START)


def read_study(path: Path) -> pd.DataFrame:
    """Return one row per trial of every study in the file, with the columns ``study``, ``value``,
    ``state``, ``params_NAME`` and ``user_attrs_NAME``.

    The file is copied first, because opening an Optuna storage writes to it. If an older Optuna
    wrote the file, the copy is upgraded.

    Raises:
        MissingError: optuna is not installed.
        StorageError: Optuna cannot read the file, or the file is too large or has no trial.
    """
    require("optuna", str(path))
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    if path.stat().st_size > MAX_BYTES:
        raise StorageError(
            f"the study is larger than {MAX_BYTES >> 20} MiB",
            str(path),
            "export its trials: study.trials_dataframe().to_csv('trials.csv')",
            code="file-too-large",
        )
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with temporary_folder("study") as scratch:
        copy = scratch / "study"
        shutil.copyfile(path, copy)
        try:
            if is_database(copy):
                _upgrade(copy)
                with _database(copy) as storage:
                    tables, directions = _studies_in(storage)
            else:
                backend = JournalFileBackend(str(copy))
                tables, directions = _studies_in(JournalStorage(backend))
        except Exception as error:
            raise StorageError(
                f"Optuna cannot read the study: {first_line(error)[:200]}",
                str(path),
                "check that the file is complete; if a newer Optuna wrote it, install that version",
                code="unreadable-study",
            ) from None
    tables = [table for table in tables if len(table)]
    if not tables:
        raise StorageError(
            "the study has no trials", str(path), "pass another study", code="no-rows"
        )
    times = ["number", "datetime_start", "datetime_complete", "duration"]
    trials: pd.DataFrame = pd.concat(tables, ignore_index=True)
    trials = trials.drop(columns=times, errors="ignore")
    if len(directions) == 1:  # with several objectives, --mode is required
        trials.attrs[DIRECTION] = "min" if directions == {"MINIMIZE"} else "max"
    return trials


def _studies_in(storage: "BaseStorage") -> tuple[list[pd.DataFrame], set[str]]:
    """Return the trials of each study, and the directions of all studies."""
    import optuna

    tables = []
    directions = set()
    for name in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=name, storage=storage)
        tables.append(study.trials_dataframe().assign(study=name))
        directions |= {direction.name for direction in study.directions}
    return tables, directions


def _upgrade(copy: Path) -> None:
    """Upgrade a database to the schema of the installed Optuna, if it is older."""
    with _database(copy, skip_compatibility_check=True) as storage:
        if storage.get_current_version() == storage.get_head_version():
            return
        before = logging.root.manager.disable
        logging.disable(logging.WARNING)  # Alembic sets its own level when it starts
        try:
            storage.upgrade()
        finally:
            logging.disable(before)


@contextmanager
def _database(file: Path, skip_compatibility_check: bool = False) -> "Iterator[RDBStorage]":
    """Open an Optuna database, and close its connections at the end."""
    from optuna.storages import RDBStorage

    storage = RDBStorage(sqlite_url(file), skip_compatibility_check=skip_compatibility_check)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()
