"""Read an MLflow store: results of loptune sweeps, or the runs of any experiment as a table.

The one module of dashboards that imports MLflow.
"""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# MLflow reads these when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
# MLflow 3 refuses to open mlruns/ folders otherwise; they are only read here
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.exceptions import MlflowException

from dashboards.results import Results
from dashboards.sources.content import database_tables
from dashboards.sources.mlflow_folders import folder_of, readable_folder
from dashboards.sources.stored import RESULTS_FILE, unpack
from loptune.errors import ConfigError, MissingError, StorageError, first_line
from loptune.mlflow_runs import CONFIRMS_TAG, PARENT_TAG, RUN_TAG, STATE_TAG, SWEEP_TAG, search_runs
from loptune.yaml_document import nearest

_logger = logging.getLogger(__name__)

_PARENT = "mlflow.parentRunId"
_BOOKKEEPING = ("mlflow.", "loptune.")  # tags that are no settings


def read_sweeps(uri: str) -> list[Results]:
    """Return the results of every sweep in a store; if several runs have one name, the last one
    counts.

    Raises:
        StorageError: the store cannot be read.
    """
    sweeps = {}
    with (
        opened_store(uri) as client,
        tempfile.TemporaryDirectory(prefix="loptune-results-") as scratch,
    ):
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = (
            search_runs(client, experiments, f"tags.`{RUN_TAG}` LIKE 'sweep/%'")
            if experiments
            else []
        )
        for run in runs:
            tags = run.data.tags
            if PARENT_TAG in tags or CONFIRMS_TAG in tags:
                continue
            files = {file.path for file in client.list_artifacts(run.info.run_id)}
            if RESULTS_FILE in files:
                path = Path(client.download_artifacts(run.info.run_id, RESULTS_FILE, scratch))
                try:
                    sweeps[tags[SWEEP_TAG]] = unpack(
                        path.read_bytes(), f"{uri}, run {run.info.run_id}"
                    )
                except StorageError as error:  # written by another version
                    _logger.warning(
                        "not counted: %s; %s; %s", tags[SWEEP_TAG], error.what, error.hint
                    )
    return list(sweeps.values())


def is_store(place: Path) -> bool:
    """Return whether a folder is an MLflow file store (``mlruns``) or one of its experiments, or a
    file is an MLflow database.
    """
    if place.is_dir():
        return (place / "meta.yaml").is_file() or any(place.glob("*/meta.yaml"))
    return place.is_file() and {"experiments", "alembic_version"} <= database_tables(place)


def read_store(place: Path, score: str, seed: str) -> pd.DataFrame:
    """Return the runs of a file store, of one of its experiments, or of a database, as
    `read_experiment` does. With several experiments, the column ``experiment`` names them.

    Raises:
        ConfigError: no run has the score or the seed.
        StorageError: the store cannot be read.
    """
    if place.is_file():
        return read_experiment(f"sqlite:///{place.resolve()}", None, score, seed)
    if (place / "meta.yaml").is_file():
        number = place.resolve().name
        store = place.resolve().parent
        with opened_store(store.as_uri()) as client:
            name = client.get_experiment(number).name
        return read_experiment(store.as_uri(), name, score, seed)
    return read_experiment(place.resolve().as_uri(), None, score, seed)


def read_experiment(uri: str, name: str | None, score: str, seed: str) -> pd.DataFrame:
    """Return one row per evaluation of each run that has a seed.

    Columns: ``params.*``, ``tags.*``, trial, status, step and score, and experiment if ``name`` is
    None, which stands for all experiments. A run that never logged the score has one row without
    it. ``score`` and ``seed`` may leave out the prefix ``params.``. If ``seed`` is empty and
    no run has the parameter seed, the column ``run_id`` identifies runs, and finished runs without
    the score are left out.

    Raises:
        ConfigError: no run has the score or the seed.
        MissingError: no such experiment.
        StorageError: the store cannot be read.
    """
    with opened_store(uri) as client:
        experiments = _experiments(client, uri, name)
        runs = search_runs(client, list(experiments), "")
        if not seed and any("seed" in run.data.params for run in runs):
            seed = "seed"
        rows: list[dict[str, Any]] = []
        metrics: set[str] = set()
        settings_of_all: set[str] = set()
        by_number = {run.info.run_id: run for run in runs}
        parents = {run.data.tags.get(_PARENT) for run in runs}
        for run in runs:
            settings = _settings(run, by_number.get(run.data.tags.get(_PARENT)))
            metrics |= set(run.data.metrics)
            settings_of_all |= set(settings)
            if seed and seed not in settings and f"params.{seed}" not in settings:
                continue
            if not seed:
                settings["run_id"] = run.info.run_id
            settings["trial"] = run.info.run_name
            settings["status"] = run.data.tags.get(STATE_TAG, run.info.status)
            if name is None and len(experiments) > 1:
                settings["experiment"] = experiments[run.info.experiment_id]
            points = client.get_metric_history(run.info.run_id, score)
            other = run.info.run_id in parents or (not seed and run.info.status == "FINISHED")
            if not points and other:
                continue  # only groups its nested runs, or does something else
            # a resumed run repeats steps: the last value counts
            values: dict[int, float | None] = {point.step: point.value for point in points}
            for step, value in (values or {0: None}).items():
                rows.append({**settings, "step": step, score: value})
    if not runs:
        place = "the store" if name is None else f"the experiment {name}"
        raise MissingError(
            f"{place} has no runs",
            uri,
            "name another folder, or an experiment as in mlflow:NAME with --store",
            code="no-runs",
        )
    if score not in metrics:
        raise ConfigError(
            f"no run has the metric {score}", uri, nearest(score, metrics), code="unknown-column"
        )
    if not rows:
        raise ConfigError(
            f"no run has the parameter {seed}",
            uri,
            nearest(seed, settings_of_all),
            code="unknown-column",
        )
    return pd.DataFrame(rows)


def _settings(run: Run, parent: Run | None) -> dict[str, Any]:
    """Return the parameters and tags of a run; a nested run has its parent's parameters, too."""
    settings: dict[str, Any] = {}
    for each in (parent, run):
        if each is not None:
            settings |= {f"params.{key}": value for key, value in each.data.params.items()}
    for key, value in run.data.tags.items():
        if not key.startswith(_BOOKKEEPING):
            settings[f"tags.{key}"] = value
    return settings


def _experiments(client: MlflowClient, uri: str, name: str | None) -> dict[str, str]:
    """Return the number and name of the experiment, or of all.

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
def opened_store(uri: str) -> Iterator[Any]:
    """Open an MLflow client for reading.

    Raises:
        StorageError: the store cannot be read.
    """
    folder = folder_of(uri)
    try:
        if folder is None:
            yield MlflowClient(uri)
        else:
            with readable_folder(folder) as readable:
                yield MlflowClient(readable.as_uri())
    except (MlflowException, OSError, ValueError) as error:  # ValueError: a damaged metric
        raise StorageError(
            f"cannot read the store: {first_line(error)[:200]}",
            uri,
            "check that the MLflow store is up, and name it with --store",
            code="unreadable-store",
        ) from error
