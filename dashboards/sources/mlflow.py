"""Read MLflow's servers and databases: results of loptune sweeps, or the runs of any experiment.

The only module of dashboards that imports MLflow.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# MLflow reads these variables when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from dashboards.results import Results
from dashboards.sources.mlflow_table import StoredRun
from dashboards.sources.stored import RESULTS_FILE, unpack
from loptune.errors import MissingError, StorageError, first_line
from loptune.mlflow_runs import CONFIRMS_TAG, OF_A_SWEEP, PARENT_TAG, SWEEP_TAG, search_runs
from loptune.temporary import temporary_folder
from loptune.yaml_document import nearest

_logger = logging.getLogger(__name__)


def read_sweeps(uri: str) -> list[Results]:
    """Return the results of every sweep in a store; of several runs with the same name, the last
    one that can be read is used.

    Raises:
        StorageError: the store cannot be read.
    """
    sweeps = []
    with opened_store(uri) as client:
        for runs in _runs_by_sweep(client).values():
            results = _last_readable(client, uri, runs)
            if results is not None:
                sweeps.append(results)
    return sweeps


def _runs_by_sweep(client: MlflowClient) -> dict[str, list[Run]]:
    """Return name of a sweep -> its runs with results, oldest first."""
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    by_sweep: dict[str, list[Run]] = {}
    if not experiments:
        return by_sweep
    for run in search_runs(client, experiments, OF_A_SWEEP):
        tags = run.data.tags
        if PARENT_TAG in tags or CONFIRMS_TAG in tags:
            continue
        files = {file.path for file in client.list_artifacts(run.info.run_id)}
        if RESULTS_FILE in files:
            by_sweep.setdefault(tags[SWEEP_TAG], []).append(run)
    return by_sweep


def _last_readable(client: MlflowClient, uri: str, runs: Sequence[Run]) -> Results | None:
    """Return the results of the last run that can be read, with a warning if it is not the last;
    None if there is none.
    """
    for run in reversed(runs):
        name = run.data.tags[SWEEP_TAG]
        try:
            results = _results_of(client, uri, run)
        except StorageError as error:  # written by a different version
            _logger.warning("skipped: %s; %s; %s", name, error.what, error.hint)
            continue
        if run is not runs[-1]:
            _logger.warning("%s: used the older run %s instead", name, run.info.run_id)
        return results
    return None


def _results_of(client: MlflowClient, uri: str, run: Run) -> Results:
    """Download the results of a sweep.

    Raises:
        StorageError: they cannot be read.
    """
    with temporary_folder("results") as scratch:
        path = Path(client.download_artifacts(run.info.run_id, RESULTS_FILE, scratch))
        return unpack(path.read_bytes(), f"{uri}, run {run.info.run_id}")


def read_runs(uri: str, experiment: str | None) -> list[StoredRun]:
    """Return the runs of all experiments of a server or database, or of the named one, oldest
    first.

    Raises:
        MissingError: no such experiment.
        StorageError: the store cannot be read.
    """
    with opened_store(uri) as client:
        experiments = _experiments(client, uri, experiment)
        runs = []
        for run in search_runs(client, list(experiments), "") if experiments else ():
            runs.append(_stored(client, uri, run, experiments[run.info.experiment_id]))
    return runs


def _stored(client: MlflowClient, uri: str, run: Run, experiment: str) -> StoredRun:
    def history(metric: str) -> list[tuple[int, float]]:
        with _as_storage_errors(uri):
            points = client.get_metric_history(run.info.run_id, metric)
        return [(point.step, point.value) for point in points]

    return StoredRun(
        number=run.info.run_id,
        name=run.info.run_name,
        experiment=experiment,
        status=run.info.status,
        params=run.data.params,
        tags=run.data.tags,
        metrics=frozenset(run.data.metrics),
        history=history,
    )


def _experiments(client: MlflowClient, uri: str, name: str | None) -> dict[str, str]:
    """Return id -> name of the named experiment, or of all experiments.

    Raises:
        MissingError: no such experiment.
    """
    if name is None:
        return {found.experiment_id: found.name for found in client.search_experiments()}
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        others = [experiment.name for experiment in client.search_experiments()]
        raise MissingError(
            f"no experiment {name}", uri, nearest(name, others), code="no-experiment"
        )
    return {experiment.experiment_id: experiment.name}


@contextmanager
def opened_store(uri: str) -> Iterator[MlflowClient]:
    """Open an MLflow client for reading.

    Raises:
        StorageError: the store cannot be read.
    """
    with _as_storage_errors(uri):
        yield MlflowClient(uri)


@contextmanager
def _as_storage_errors(uri: str) -> Iterator[None]:
    try:
        yield
    except (MlflowException, OSError, ValueError) as error:  # ValueError: a damaged metric
        raise StorageError(
            f"cannot read the store: {first_line(error)[:200]}",
            uri,
            "check that the MLflow server is running, and pass its address with --store",
            code="unreadable-store",
        ) from error
