"""Results from an MLflow store: those that sweeps sent there. The one module of dashboards that imports MLflow."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# MLflow reads these when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dashboards.results import Results
from dashboards.sources.stored import RESULTS_FILE, unpack
from trainer.errors import StorageError, first_line
from trainer.metrics.recorded_runs import search_runs
from trainer.metrics.tags import CONFIRMS_TAG, PARENT_TAG, RUN_TAG, SWEEP_TAG


def read_sweeps(uri: str) -> list[Results]:
    """Return the results of every sweep of a store; of several runs of one name those of the last.

    Raises:
        StorageError: the store cannot be read.
    """
    sweeps = {}
    with opened_store(uri) as client, tempfile.TemporaryDirectory(prefix="loptune-results-") as scratch:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = search_runs(client, experiments, f"tags.`{RUN_TAG}` LIKE 'sweep/%'") if experiments else []
        for run in runs:
            tags = run.data.tags
            if PARENT_TAG in tags or CONFIRMS_TAG in tags:
                continue
            files = {file.path for file in client.list_artifacts(run.info.run_id)}
            if RESULTS_FILE in files:
                path = Path(client.download_artifacts(run.info.run_id, RESULTS_FILE, scratch))
                sweeps[tags[SWEEP_TAG]] = unpack(path.read_bytes(), f"{uri}, run {run.info.run_id}")
    return list(sweeps.values())


@contextmanager
def opened_store(uri: str) -> Iterator[Any]:
    """Open a client of an MLflow store, to read from.

    Raises:
        StorageError: the store cannot be read.
    """
    try:
        yield MlflowClient(uri)
    except (MlflowException, OSError) as error:
        raise StorageError(
            f"cannot read the store: {first_line(error)[:200]}", uri, "check that the MLflow store is up"
        ) from error
