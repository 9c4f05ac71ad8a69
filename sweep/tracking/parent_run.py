"""The MLflow run of a sweep: parent of its trials' runs, opened by the sweep's driver."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from loptune.identity import identity, known_identity
from loptune.mlflow_runs import (
    CONFIRMS_TAG,
    NOTE_TAG,
    PARENT_TAG,
    REASON_TAG,
    RUN_TAG,
    STATE_TAG,
    SWEEP_TAG,
    find_runs,
    sweep_key,
)
from sweep.record.sweep_record import SweepRecord
from sweep.tracking.outcomes import EndedTrial, ended_trials
from sweep.tracking.view import save_view
from trainer.run_folder import RunFolder
from trainer.tracking.inputs import change_tags
from trainer.tracking.mlflow_store import (
    connect,
    find_experiment,
    log_missing_params,
    open_run,
    prepare_store,
    retry,
    sqlite_path,
    tracking_uri,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

_T = TypeVar("_T")

_PATIENCE_S = 10.0  # seconds between progress lines
MAX_SINGLE_QUERIES = 20  # up to this many runs are fetched one by one

# state of an ended trial -> status of its run
_STATUS: dict[str, str] = {"COMPLETE": "FINISHED", "PRUNED": "KILLED", "FAIL": "FAILED"}


def with_progress(items: Sequence[_T], what: str) -> Iterator[_T]:
    """Yield the items, and print the progress every ten seconds."""
    last_print = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last_print > _PATIENCE_S:
            last_print = time.monotonic()
            print(f"{what}: {done} of {len(items)} trials", flush=True)
        yield item


@dataclass(frozen=True)
class ParentRun:
    """An open parent run. Every method retries for a limited time, then raises StorageError."""

    client: "MlflowClient"
    uri: str
    run_id: str
    experiment_id: str

    def log_artifact(self, path: Path, artifact_path: str = "") -> None:
        """Upload a file, or the content of a folder."""
        send = self.client.log_artifacts if path.is_dir() else self.client.log_artifact
        self._retry(lambda: send(self.run_id, str(path), artifact_path or None))

    def describe(self, tags: Mapping[str, str], metrics: Mapping[str, float]) -> None:
        """Set tags and metrics of the sweep as a whole."""
        self._log(self.run_id, tags, metrics)

    def finish(self, status: str) -> None:
        """Set the final status: FINISHED, FAILED or KILLED."""
        self._retry(lambda: self.client.set_terminated(self.run_id, status))

    def reconcile(self, ended: Iterable[EndedTrial], create: bool = True) -> int:
        """Update the trials' runs, and return how many were changed or created.

        A run left RUNNING by a killed process is ended. A trial that died before it opened its run
        gets one if ``create``, which must be False while ranks may still open it. Idempotent.
        """
        ended = list(ended)
        # Fetching all runs of a large sweep takes megabytes; after one trial has ended only its run
        # is needed.
        wanted = [{RUN_TAG: each.key} for each in ended]
        if len(ended) > MAX_SINGLE_QUERIES:
            wanted = [{SWEEP_TAG: ended[0].tags[SWEEP_TAG]}]
        runs = {}
        for tags in wanted:
            for run in self._find(tags):
                runs[run.data.tags.get(RUN_TAG)] = run
        changed = 0
        for each in with_progress(ended, "states in MLflow"):
            if create or each.key in runs:
                changed += self._reconcile(each, runs.get(each.key))
        return changed

    def _find(self, tags: Mapping[str, str]) -> list[Any]:
        return self._retry(lambda: find_runs(self.client, [self.experiment_id], tags))

    def _reconcile(self, ended: EndedTrial, run: Any | None) -> bool:
        trial = ended.trial
        status = _STATUS[trial.state]
        tags = {**ended.tags, STATE_TAG: trial.state, REASON_TAG: trial.reason[:500]}
        if trial.reason:
            tags[NOTE_TAG] = trial.reason  # shown at the top of the run's page in MLflow
        scores = {"final/score": trial.score, "final/second": trial.second}
        scores = {name: score for name, score in scores.items() if not math.isnan(score)}
        if run is None:
            tags[PARENT_TAG] = self.run_id
            run_id = open_run(
                self.client, self.uri, self.experiment_id, ended.run_name, tags, ended.key
            )
            self._retry(lambda: log_missing_params(self.client, run_id, trial.parameters))
        else:
            run_id = run.info.run_id
            known = run.data.tags
            if not trial.reason and known.get(NOTE_TAG, "")[:500] == known.get(REASON_TAG):
                tags[NOTE_TAG] = ""  # the failure reason of an earlier attempt, not a user's note
            tags = _changed(tags, known)
            scores = _changed(scores, run.data.metrics)
            if not tags and not scores and run.info.status == status:
                return False
        self._log(run_id, tags, scores)
        # If the run has this status already, do not set it again: that would change the end time.
        if run is None or run.info.status != status:
            self._retry(lambda: self.client.set_terminated(run_id, status))
        return True

    def _log(self, run_id: str, tags: Mapping[str, str], metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric, RunTag

        now = round(time.time() * 1000)
        values = [Metric(name, value, now, 0) for name, value in metrics.items()]
        texts = [RunTag(name, str(value)) for name, value in tags.items()]
        self._retry(lambda: self.client.log_batch(run_id, metrics=values, tags=texts))

    def _retry(self, action: Callable[[], _T]) -> _T:
        return retry(action, self.uri)


def _changed(values: Mapping[str, _T], known: Mapping[str, _T]) -> dict[str, _T]:
    """Return the values that differ from a run's values. A missing value equals an empty one."""
    return {name: value for name, value in values.items() if known.get(name, "") != value}


def open_parent_run(
    uri: str, experiment: str, sweep_name: str, tags: Mapping[str, str], sweep_id: str
) -> ParentRun:
    """Find or create the parent run of the sweep whose identity is ``sweep_id``, and set its tags.

    Args:
        uri: address of the MLflow store.
        experiment: name of the experiment.
        sweep_name: name of the sweep.
        tags: tags of the run.
        sweep_id: id of the sweep, see `loptune.identity`.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    client = connect(uri)
    experiment_id = find_experiment(client, uri, experiment)
    every_tag = {**tags, SWEEP_TAG: sweep_name}
    key = sweep_key(sweep_name, sweep_id)
    run_id = open_run(client, uri, experiment_id, f"sweep {sweep_name}", every_tag, key)
    parent = ParentRun(client, uri, run_id, experiment_id)
    parent.describe(tags, {})
    return parent


def find_parent(sweep: SweepRecord) -> ParentRun | None:
    """Return the sweep's existing run in MLflow; None if there is none, or if tracking is offline.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    spec = sweep.spec
    uri = tracking_uri(spec.program.tracking_settings, sweep.folder.runs_dir)
    database = sqlite_path(uri)
    if spec.program.tracking_settings.offline or (database is not None and not database.exists()):
        return None
    client = connect(uri)
    experiment = retry(lambda: client.get_experiment_by_name(spec.experiment), uri)
    if experiment is None:
        return None
    own = known_identity(sweep.folder.root)
    if own is None:
        return None
    tags = {RUN_TAG: sweep_key(spec.name, own)}
    runs = retry(lambda: find_runs(client, [experiment.experiment_id], tags), uri)
    if not runs:
        return None
    return ParentRun(client, uri, runs[-1].info.run_id, experiment.experiment_id)


def open_parent(sweep: SweepRecord) -> ParentRun | None:
    """Open the sweep's run in MLflow, save its view and update the trials' states; None if tracking
    is offline.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    spec = sweep.spec
    if spec.program.tracking_settings.offline:
        return None
    uri = tracking_uri(spec.program.tracking_settings, sweep.folder.runs_dir)
    prepare_store(uri)
    tags = spec.program.tracking_settings.tags | change_tags(sweep.folder.root)
    if spec.confirms:
        tags[CONFIRMS_TAG] = spec.confirms.sweep
    own = identity(sweep.folder.root)
    parent = open_parent_run(uri, spec.experiment, spec.name, tags, own)
    for file in (sweep.folder.space, RunFolder(sweep.folder.root).inputs):
        if file.is_file():
            parent.log_artifact(file)
    save_view(uri, spec)
    parent.reconcile(ended_trials(sweep))
    return parent
