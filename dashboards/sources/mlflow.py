"""Read an MLflow store: results of loptune sweeps, or the runs of any experiment as a table.

The one module of dashboards that imports MLflow.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# MLflow reads these when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

import pandas as pd
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dashboards.results import Results
from dashboards.sources.stored import RESULTS_FILE, unpack
from trainer.config.yaml_document import nearest
from trainer.errors import MissingError, StorageError, first_line
from trainer.metrics.recorded_runs import search_runs
from trainer.metrics.tags import CONFIRMS_TAG, PARENT_TAG, RUN_TAG, SWEEP_TAG


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
                    print(
                        f"not counted: {tags[SWEEP_TAG]}; {error.what}; {error.hint}",
                        file=sys.stderr,
                    )
    return list(sweeps.values())


def read_experiment(uri: str, name: str, score: str, seed: str) -> pd.DataFrame:
    """Return one row per evaluation of each run that has a seed.

    Columns: ``params.*``, ``tags.*``, trial, step and score. A failed or killed run has one row
    without a score.

    Raises:
        MissingError: no such experiment.
        StorageError: the store cannot be read.
    """
    with opened_store(uri) as client:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            others = [experiment.name for experiment in client.search_experiments()]
            raise MissingError(f"no experiment {name}", uri, nearest(name, others))
        rows: list[dict[str, Any]] = []
        for run in search_runs(client, [experiment.experiment_id], ""):
            settings = {f"params.{key}": value for key, value in run.data.params.items()}
            settings |= {
                f"tags.{key}": value
                for key, value in run.data.tags.items()
                if not key.startswith("mlflow.")
            }
            if seed not in settings:
                continue
            settings["trial"] = run.info.run_name
            values: dict[int, float | None] = {0: None}
            if run.info.status not in ("FAILED", "KILLED"):
                points = client.get_metric_history(run.info.run_id, score)
                # a resumed run repeats steps: the last value counts
                values = {point.step: point.value for point in points} or values
            rows += [{**settings, "step": step, score: value} for step, value in values.items()]
    return pd.DataFrame(rows)


@contextmanager
def opened_store(uri: str) -> Iterator[Any]:
    """Open an MLflow client for reading.

    Raises:
        StorageError: the store cannot be read.
    """
    try:
        yield MlflowClient(uri)
    except (MlflowException, OSError) as error:
        raise StorageError(
            f"cannot read the store: {first_line(error)[:200]}",
            uri,
            "check that the MLflow store is up",
        ) from error
