"""MLflow store access: URI, schema setup, and finding runs by tag.

MLflow takes two seconds to import, so it is imported lazily.
"""

import contextlib
import errno
import getpass
import hashlib
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from filelock import FileLock

from loptune.credentials import split_credentials
from loptune.errors import ConfigError, StorageError, first_line
from loptune.files import storage_error
from loptune.mlflow_runs import RUN_TAG, find_runs
from loptune.run_names import command_line
from trainer.config.tracking import TrackingConfig
from trainer.policy.cache import cache_folder, ensure_folder

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

_URI_VARIABLE = "MLFLOW_TRACKING_URI"
_SCHEMES = (
    "http",
    "https",
    "sqlite",
    "postgresql",
    "mysql",
    "mssql",
    "databricks",
    "databricks-uc",
)
_KNOWN_STORES = (
    "write http://HOST:PORT or sqlite:///FILE, or unset the URI to use the store in the runs folder"
)
START_LIMIT_S = 5.0  # how long to retry an unresponsive server
LOCK_LIMIT_S = 30.0  # how long to wait for a locked database
_EMPTY_STORE = "mlflow.db"  # file in the cache folder
_MAX_NAME = 250  # MLflow's limit for names of metrics and parameters

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # `Uploader` does its own retries. MLflow's retries would block for minutes, and a retried
    # create-run request could create a second run.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
_PERMANENT = (
    "INVALID_PARAMETER_VALUE",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "RESOURCE_DOES_NOT_EXIST",
)

T = TypeVar("T")


def _quiet_mlflow() -> None:
    """Set MLflow's environment variables (no telemetry, short timeouts) and silence its loggers.

    Variables set by the user are kept. Must be called before MLflow is imported.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # MLflow raises failures as exceptions anyway, and would additionally print their tracebacks
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("mlflow.store").setLevel(logging.CRITICAL)
    logging.getLogger("alembic").setLevel(logging.WARNING)


@contextlib.contextmanager
def imported_meanwhile(uri: str, *modules: str) -> Iterator[None]:
    """Import MLflow (and its SQLite code, if the store needs it) and then ``modules`` in a thread,
    while the block waits for something else.
    """
    of_sqlite = "mlflow.store.tracking.sqlalchemy_store"

    def work() -> None:
        _quiet_mlflow()
        for name in ("mlflow" if sqlite_path(uri) is None else of_sqlite, *modules):
            with contextlib.suppress(Exception):  # raised again when the module is used
                import_module(name)

    thread = threading.Thread(target=work, name="import-mlflow")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def tracking_uri(config: TrackingConfig, runs_dir: Path) -> str:
    """Return the tracking URI of a run: ``tracking.uri``, or ``MLFLOW_TRACKING_URI``, or SQLite in
    the runs folder.

    SQLite paths are made absolute, because trial processes run in other folders. Credentials in
    ``MLFLOW_TRACKING_URI`` are moved to MLflow's own variables, because URIs are recorded and
    printed.

    Raises:
        ConfigError: a database URI with a password, or a path that MLflow would misinterpret.
    """
    uri = config.uri
    if not uri:
        uri, name, password = _split_environment_uri()
        if uri and (name or password):
            _move_credentials(uri, name, password)
    path = sqlite_path(uri) if uri else runs_dir / "mlflow.db"
    if path is None:
        return uri or ""
    place = str(path.resolve())
    if not set("%#?").isdisjoint(place):
        raise ConfigError(
            "MLflow misinterprets paths that contain %, # or ?",
            place,
            "choose another --runs-dir, or set tracking.uri",
            key="tracking.uri",
            code="mlflow-path",
        )
    return f"sqlite:///{place}"


def _split_environment_uri() -> tuple[str | None, str, str]:
    """Return ``MLFLOW_TRACKING_URI`` without credentials, or None, and the user name and password
    of a server (empty strings if absent).

    Raises:
        ConfigError: the URI of a database, with a password.
    """
    uri = os.environ.get(_URI_VARIABLE)
    clean, name, password = split_credentials(uri or "")
    if clean.startswith("http"):
        return clean, name, password
    if password:
        raise ConfigError(
            "the database password in this URI would be recorded with every run",
            _URI_VARIABLE,
            "run an `mlflow server` in front of the database, or store the password in "
            "the database client's file (~/.pgpass)",
            code="password-in-uri",
        )
    return uri, "", ""


def _move_credentials(uri: str, name: str, password: str) -> None:
    """Set MLflow's own variables to the credentials that its URI contains, and remove them from the
    URI. A part that the URI lacks keeps its variable, so that the password can be set there alone.
    """
    parts = {"MLFLOW_TRACKING_USERNAME": name, "MLFLOW_TRACKING_PASSWORD": password}
    for variable, value in parts.items():
        if value:
            os.environ[variable] = value
    os.environ[_URI_VARIABLE] = uri


def sqlite_path(uri: str) -> Path | None:
    """Return the database file of a ``sqlite:///`` URI, or None for other stores."""
    if not uri.startswith("sqlite:///"):
        return None
    if "%" not in uri:  # a short cut, because SQLAlchemy takes long to import
        return Path(uri.removeprefix("sqlite:///"))
    from sqlalchemy import make_url

    return Path(make_url(uri).database or "")


def prepare_store(uri: str) -> None:
    """Create or upgrade the schema of a SQLite store. Other stores manage their own schema.

    Must be called by one process before trials start, because concurrent migrations of a new SQLite
    file fail. A new file is copied from an empty store that this machine created earlier, because
    MLflow's migrations take 1.5 s of CPU time.

    Raises:
        StorageError: the file cannot be created, or stays locked.
    """
    path = sqlite_path(uri)
    if path is None:
        return
    try:
        path.parent.mkdir(exist_ok=True)
        lock = FileLock(path.with_name(path.name + ".lock")).acquire()
    except OSError as error:
        raise StorageError(
            f"cannot create the MLflow store: {error}",
            uri,
            "create its folder, or set tracking.uri",
            code="store-not-created",
        ) from None
    with lock:
        _schema_exists(path)  # waits for locks, and raises if the file is not a database
        _quiet_mlflow()
        from mlflow import MlflowClient

        with _disabled_logging():
            if not path.exists():
                _copy_empty_store(path)
            retry(lambda: MlflowClient(uri).search_experiments(max_results=1), uri)


def _copy_empty_store(path: Path) -> None:
    """Create a store as a copy of an empty one in the cache; leave it to MLflow if that fails."""
    from mlflow.exceptions import MlflowException
    from mlflow.version import VERSION
    from sqlalchemy.exc import SQLAlchemyError

    unfinished = path.with_name(f".{path.name}.new")
    try:
        folder = ensure_folder(cache_folder() / f"mlflow-{VERSION}", _make_empty_store)
        shutil.copyfile(folder / _EMPTY_STORE, unfinished)
        unfinished.rename(path)
    except (OSError, StorageError, sqlite3.Error, MlflowException, SQLAlchemyError) as error:
        logger.debug("MLflow creates its store itself: %s", error)
        unfinished.unlink(missing_ok=True)


def _make_empty_store(folder: Path) -> None:
    """Let MLflow create a store. Remove its experiment "Default": it contains the path of this
    folder, and MLflow creates another one in each copy.
    """
    from mlflow import MlflowClient

    file = folder / _EMPTY_STORE
    MlflowClient(f"sqlite:///{file}").search_experiments(max_results=1)
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("DELETE FROM experiments")
        database.commit()


def check_store(uri: str) -> None:
    """Prepare a store and test it with a query.

    Raises:
        ConfigError: unsupported URI scheme.
        StorageError: the store cannot be reached.
    """
    scheme = uri.partition(":")[0].partition("+")[0]
    if (
        scheme not in _SCHEMES
        or (scheme == "sqlite" and sqlite_path(uri) is None)
        or not _is_address(uri)
    ):
        raise ConfigError(
            f"not a valid MLflow tracking URI: {uri}",
            f"tracking.uri, {_URI_VARIABLE}",
            _KNOWN_STORES,
            code="invalid-tracking-uri",
        )
    prepare_store(uri)
    client = connect(uri)
    retry(lambda: client.search_experiments(max_results=1), uri)


def _is_address(uri: str) -> bool:
    try:
        return urlsplit(uri).port != 0
    except ValueError:  # such as http://[::1 or http://127.0.0.1:abc
        return False


def connect(uri: str, *, records: bool = True) -> "MlflowClient":
    """Return a client of the store.

    Args:
        uri: the store.
        records: whether the caller records runs, which it could also do with ``--offline``.

    Raises:
        StorageError: the store cannot be reached, or is a SQLite file that has no schema (call
            `prepare_store`), stays locked or is not a database.
    """
    path = sqlite_path(uri)
    if path is not None and not _schema_exists(path):
        raise StorageError(
            "the MLflow store does not exist or is empty",
            str(path),
            "restore the file, or start a run or sweep without --offline to create a store",
            code="no-mlflow-store",
        )
    _quiet_mlflow()
    from mlflow import MlflowClient

    return retry(lambda: MlflowClient(uri), uri, records=records)


def retry(action: Callable[[], T], uri: str, *, records: bool = True) -> T:
    """Retry ``action`` on the store ``uri`` until it succeeds or a time limit is reached, which is
    longer for SQLite locks than for servers. ``records`` as for `connect`.

    Raises:
        StorageError: time limit reached, or a permanent error.
    """
    path = sqlite_path(uri)
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    deadline = time.monotonic() + (LOCK_LIMIT_S if path else START_LIMIT_S)
    pause = 0.2
    while True:
        try:
            return action()
        except (MlflowException, RequestException, SQLAlchemyError, OSError) as error:
            is_full_database = path is not None and "disk is full" in str(error)
            if is_full_database or getattr(error, "errno", None) == errno.ENOSPC:
                place = path or Path(getattr(error, "filename", None) or tempfile.gettempdir())
                raise storage_error("write MLflow's record", place, error) from error
            is_out_of_date = "out-of-date" in str(error)
            is_permanent = is_out_of_date or getattr(error, "error_code", None) in _PERMANENT
            if is_permanent or time.monotonic() + pause > deadline:
                raise StorageError(
                    f"MLflow request failed: {reason(error)}",
                    uri,
                    _hint(error, path, records),
                    code="mlflow-request",
                ) from error
        time.sleep(pause)
        pause = min(2 * pause, 2.0)


def _hint(error: Exception, file: Path | None, records: bool) -> str:
    """Return the hint for an error of the SQLite store in ``file``, or of a server if ``file`` is
    None.
    """
    if getattr(error, "error_code", None) in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
    if file is None:
        first = "start the server"
    elif "locked" in str(error):
        first = f"end the program that writes to {file.name}"
    elif "out-of-date" in str(error):
        upgrade = command_line("mlflow", "db", "upgrade", f"sqlite:///{file}")
        first = f"run `{upgrade}`"
    else:
        first = f"move {file.name} away to create a new store"
    if not records:
        return first
    return f"{first}, or use --offline and upload later with `trainer upload` or `sweep upload`"


def reason(error: BaseException) -> str:
    """Return the essential part of an MLflow or requests error message."""
    line = first_line(error)
    if "HTTPConnectionPool" in line:
        line = line.rsplit("Caused by ", 1)[-1].rsplit(": ", 1)[-1].strip("\"')")
    return line[:300]


def find_experiment(client: "MlflowClient", uri: str, name: str) -> str:
    """Return the experiment's id; create it if missing. Safe for concurrent processes.

    Raises:
        StorageError: the store is not reachable, or the experiment was deleted in the UI.
    """
    from mlflow.exceptions import MlflowException

    def get_or_create() -> Any:
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            return experiment
        database = sqlite_path(uri)
        folder = (
            None
            if database is None
            else database.parent / "mlartifacts" / re.sub(r"[^\w-]", "_", name)
        )
        try:
            created: str = client.create_experiment(
                name, artifact_location=folder and folder.resolve().as_uri()
            )
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            return client.get_experiment_by_name(name)
        return client.get_experiment(created)

    experiment = retry(get_or_create, uri)
    if experiment.lifecycle_stage != "active":
        raise StorageError(
            f"experiment {name} was deleted in MLflow",
            uri,
            "restore the experiment in MLflow, or choose another name",
            code="experiment-deleted",
        )
    return str(experiment.experiment_id)


def open_run(
    client: "MlflowClient",
    uri: str,
    experiment_id: str,
    run_name: str,
    tags: Mapping[str, str],
    key: str,
    started: int | None = None,
) -> str:
    """Return the id of the run tagged ``loptune.run = key`` and set its status to RUNNING; create
    it if missing.

    ``started`` is the start time [ms since 1970], default now.

    Raises:
        StorageError: the store does not answer.
    """

    def find_or_create() -> str:
        # search again on every retry: an attempt whose response was lost may have created the run
        for run in find_runs(client, [experiment_id], {RUN_TAG: key}):
            run_id = str(run.info.run_id)
            client.update_run(run_id, status="RUNNING")
            return run_id
        created = client.create_run(
            experiment_id, started, {**_system_tags(), **tags, RUN_TAG: key}, run_name
        )
        return str(created.info.run_id)

    return retry(find_or_create, uri)


def log_missing_params(client: "MlflowClient", run_id: str, params: Mapping[str, Any]) -> None:
    """Log the parameters that the run does not have yet; MLflow parameters are immutable.

    Values are truncated to MLflow's limit; lists and mappings are logged as their str().
    """
    from mlflow.entities import Param

    present = client.get_run(run_id).data.params
    missing = [
        Param(mlflow_name(name), str(value)[:6000])
        for name, value in params.items()
        if mlflow_name(name) not in present
    ]
    for start in range(0, len(missing), 100):
        client.log_batch(run_id, params=missing[start : start + 100])


def mlflow_name(name: str) -> str:
    """Return a name that MLflow allows: names of datasets and difficulties are free text.

    Forbidden characters and path parts are replaced. A changed name ends with a hash of the
    original, because ``a?b`` and ``a*b`` would otherwise be one metric.
    """
    parts = re.sub(r"[^\w\-. /:]", "_", name).split("/")
    allowed = "/".join(part if part.strip(".") else "_" for part in parts)
    if allowed == name and len(name) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{allowed[: _MAX_NAME - 9]}-{digest}"


def _system_tags() -> dict[str, str]:
    tags = {"mlflow.source.name": "loptune", "mlflow.source.type": "LOCAL"}
    # the user id may have no name, as in many containers
    with contextlib.suppress(KeyError, OSError):
        tags["mlflow.user"] = getpass.getuser()
    return tags


def _schema_exists(path: Path) -> bool:
    """Return whether the database has MLflow's schema. Waits for locks itself, because MLflow would
    wait 100 s.

    Raises:
        StorageError: the database stays locked, or the file is not a database.
    """
    if not path.exists():
        return False
    deadline = time.monotonic() + LOCK_LIMIT_S
    while True:
        try:  # one-second timeouts, so that Ctrl-C is handled within a second
            with contextlib.closing(
                sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1.0)
            ) as database:
                row = database.execute(
                    "SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'"
                ).fetchone()
                return bool(row)
        except sqlite3.DatabaseError as error:
            locked = "locked" in str(error)
            if locked and time.monotonic() < deadline:
                continue
            held = (
                "stop the process that locks it, then resume"
                if locked
                else "restore the file, or move it away"
            )
            raise StorageError(
                f"cannot read the MLflow store: {error}", str(path), held, code="store-unreadable"
            ) from None


@contextlib.contextmanager
def _disabled_logging() -> Iterator[None]:
    """Disable INFO messages during migrations, because Alembic reconfigures the loggers."""
    before = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(before)
