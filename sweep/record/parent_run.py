"""The MLflow run of a sweep: parent of its trials' runs, opened by the sweep's driver."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from trainer.tracking.mlflow_store import (
    PARENT_TAG,
    RUN_TAG,
    SWEEP_TAG,
    connect,
    find_experiment,
    find_runs,
    log_missing_params,
    open_run,
    patience,
    retry,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")
TrialState = Literal["RUNNING", "COMPLETE", "PRUNED", "FAIL"]

STATE_TAG = "loptune.state"
REASON_TAG = "loptune.reason"
NOTE_TAG = "mlflow.note.content"  # a run's description, in Markdown
ASKED_SINGLY = 20  # runs that are asked for one by one

_STATUS: dict[TrialState, str] = {
    "RUNNING": "RUNNING",
    "COMPLETE": "FINISHED",
    "PRUNED": "KILLED",
    "FAIL": "FAILED",
}


@dataclass(frozen=True)
class TrialOutcome:
    """What the sweep knows of a trial, for its MLflow run."""

    key: str  # the tag loptune.run of the trial's run
    run_name: str
    state: TrialState
    reason: str = ""  # why it failed or was stopped
    score: float | None = None  # logged as final/score
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)  # for a run the trial never got to open


class ParentRun:
    """An open parent run. Every method repeats itself for a bounded time, then raises StorageError."""

    def __init__(self, client: "MlflowClient", uri: str, run_id: str, experiment_id: str) -> None:
        self._client = client
        self._experiment_id = experiment_id
        self.uri = uri
        self.run_id = run_id

    def log_artifact(self, path: Path, artifact_path: str = "") -> None:
        """Copy a file, or a folder's content, to the run."""
        send = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        self._retry(lambda: send(self.run_id, str(path), artifact_path or None))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set or replace tags."""
        self._log(self.run_id, tags, {})

    def finish(self, status: str) -> None:
        """Set the final status: FINISHED, FAILED or KILLED."""
        self._retry(lambda: self._client.set_terminated(self.run_id, status))

    def reconcile(self, outcomes: Iterable[TrialOutcome], create: bool = True) -> int:
        """Make the trials' runs say what the sweep knows: state, reason, score and status.

        A run left RUNNING by a killed process gets its end; a trial that died before it opened a run gets
        one, so that no trial is missing. Doing it twice changes nothing.

        Args:
            outcomes: of trials that have ended.
            create: whether to make the runs that are missing; not while ranks live, which may be about to.

        Returns:
            The number of runs changed or created.
        """
        outcomes = list(outcomes)
        # All runs of a large sweep are megabytes; after a trial has ended only its own is wanted.
        few = len(outcomes) <= ASKED_SINGLY
        wanted = [{RUN_TAG: outcome.key} for outcome in outcomes] if few else [{PARENT_TAG: self.run_id}]
        runs = {run.data.tags.get(RUN_TAG): run for tags in wanted for run in self._find(tags)}
        return sum(
            self._reconcile(outcome, runs.get(outcome.key))
            for outcome in outcomes
            if create or outcome.key in runs
        )

    def _find(self, tags: Mapping[str, str]) -> list[Any]:
        return self._retry(lambda: find_runs(self._client, [self._experiment_id], tags))

    def _reconcile(self, outcome: TrialOutcome, run: Any | None) -> bool:
        tags = {**outcome.tags, STATE_TAG: outcome.state, REASON_TAG: outcome.reason[:500]}
        if outcome.reason:
            tags[NOTE_TAG] = outcome.reason  # what MLflow shows at the top of the run's page
        scores = {} if outcome.score is None else {"final/score": outcome.score}
        if run is None:
            tags[PARENT_TAG] = self.run_id
            run_id = open_run(self._client, self.uri, self._experiment_id, outcome.run_name, tags, outcome.key)
            self._retry(lambda: log_missing_params(self._client, run_id, outcome.params))
        else:
            run_id = run.info.run_id
            tags = {name: value for name, value in tags.items() if run.data.tags.get(name, "") != value}
            scores = {name: value for name, value in scores.items() if run.data.metrics.get(name) != value}
            if not tags and not scores and run.info.status == _STATUS[outcome.state]:
                return False
        self._log(run_id, tags, scores)
        # Whoever ended the run knows when: to end it again would make it last until now.
        if outcome.state != "RUNNING" and (run is None or run.info.status != _STATUS[outcome.state]):
            self._retry(lambda: self._client.set_terminated(run_id, _STATUS[outcome.state]))
        return True

    def _log(self, run_id: str, tags: Mapping[str, str], metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric, RunTag

        now = round(time.time() * 1000)
        values = [Metric(name, value, now, 0) for name, value in metrics.items()]
        texts = [RunTag(name, str(value)) for name, value in tags.items()]
        self._retry(lambda: self._client.log_batch(run_id, metrics=values, tags=texts))

    def _retry(self, action: Callable[[], T]) -> T:
        return retry(action, self.uri, patience(self.uri))


def open_parent_run(
    uri: str, experiment: str, sweep_name: str, tags: Mapping[str, str], params: Mapping[str, Any]
) -> ParentRun:
    """Find the sweep's parent run again, or create it.

    Args:
        uri: the store, from ``tracking_uri``, after ``prepare_store``.
        experiment: MLflow experiment of the sweep and its trials.
        sweep_name: value of the tag ``loptune.sweep``.
        tags: further tags, replaced at every opening.
        params: parameters; those the run already has stay as they are.

    Raises:
        StorageError: MLflow cannot be reached.
    """
    client = connect(uri)
    experiment_id = find_experiment(client, uri, experiment)
    every_tag = {**tags, SWEEP_TAG: sweep_name}
    run_id = open_run(client, uri, experiment_id, f"sweep {sweep_name}", every_tag, f"sweep/{sweep_name}")
    parent = ParentRun(client, uri, run_id, experiment_id)
    parent.set_tags(tags)
    retry(lambda: log_missing_params(client, run_id, params), uri, patience(uri))
    return parent
