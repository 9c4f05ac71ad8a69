"""Upload of a run's local record to MLflow.

``metrics.jsonl`` is the queue. ``tracking.json`` stores the MLflow run id, how much of the queue
was uploaded, and whether the final status was uploaded. Uploads are idempotent, because MLflow
deduplicates equal (metric, step, time, value), so lost responses and crashes are harmless. If a
resumed run recomputes steps, they are uploaded again, and the newest value of a step is the valid
one.
"""

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from loptune.declared_metrics import COMPLETIONS_TABLE, declaration
from loptune.errors import StorageError
from loptune.files import Record, read_json_lines, read_records, write_atomically
from loptune.mlflow_runs import CHANGES_TAG
from loptune.yaml_document import read_yaml
from trainer.config.schema import dotted_values
from trainer.run_folder import RunFolder
from trainer.tracking.mlflow_store import (
    connect,
    find_experiment,
    log_missing_params,
    mlflow_name,
    open_run,
    retry,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

ATTEMPT = "attempt"  # key of a line of metrics.jsonl: number of the trial's attempt that wrote it
_MAX_METRICS_PER_BATCH = 1000  # MLflow's limit per request
_MAX_TABLE_ROWS = 800  # the full table is re-uploaded each time; completions.jsonl keeps all rows


def offset_after_step(path: Path, step: int) -> int:
    """Return the byte offset of the end of the last line whose step is at most ``step``. Steps are
    logged in order.
    """
    cut = 0
    if not path.exists():
        return cut
    for record, end in read_json_lines(path):
        if record.get("step", 0) > step:
            break
        cut = end
    return cut


def metrics_record(
    metrics: Mapping[str, float], step: int, declared: bool = True, attempt: int = 0
) -> Record:
    """Return the record of one ``log`` call: step, time [s since 1970, to the millisecond], metrics
    and the number of the trial's attempt, if it is not 0.

    NaN and infinity are written as null and listed under ``nonfinite``.

    Raises:
        KeyError: with ``declared``, a metric that ``loptune/declared_metrics.yaml`` does not
            declare.
    """
    record: Record = {"step": int(step), "time": round(time.time(), 3)}
    if attempt:
        record[ATTEMPT] = attempt
    nonfinite: dict[str, str] = {}
    for name, value in metrics.items():
        if declared:
            declaration(name)
        number = float(value)
        if math.isfinite(number):
            record[name] = number
        else:
            record[name], nonfinite[name] = None, str(number)
    return {**record, "nonfinite": nonfinite} if nonfinite else record


def metric_values(record: Record) -> dict[str, float]:
    """Return the finite metrics of a record."""
    values = {}
    for name, value in record.items():
        if value is not None and name not in ("step", "time", "nonfinite", ATTEMPT):
            values[name] = value
    return values


def recorded_times(path: Path) -> tuple[int, int] | None:
    """Return the run's start time (first record's time minus its duration) and the last record's
    time [ms since 1970], or None without records.
    """
    records = read_records(path)
    if not records:
        return None
    first = records[0]
    seconds = float(first.get("time/evaluation") or first.get("time/step") or 0)
    return round(1000 * (first["time"] - seconds)), round(1000 * records[-1]["time"])


def recorded_values(path: Path, metric: str) -> dict[int, float]:
    """Return a metric by training step from ``metrics.jsonl``; NaN if not finite. Empty without a
    file.
    """
    return {} if not path.exists() else values_of(read_records(path), metric)


def values_of(records: Iterable[Record], metric: str) -> dict[int, float]:
    """Return a metric by training step; NaN where it was not finite."""
    values = {}
    for record in records:
        if metric in record:
            value = record[metric]
            values[int(record["step"])] = math.nan if value is None else float(value)
    return values


_saving = Lock()


@dataclass
class TrackingState:
    """Upload state of a run, stored in ``tracking.json`` so that a later process can continue."""

    key: str  # value of the loptune.run tag
    experiment: str
    run_name: str
    tags: dict[str, str]
    runs_dir: str
    uri: str | None = None  # tracking URI that run_id belongs to
    run_id: str | None = None
    metrics_sent: int = 0  # uploaded bytes of metrics.jsonl
    status: str | None = None  # FINISHED, FAILED or KILLED once the run has ended
    status_sent: bool = False  # status and complete record uploaded

    @classmethod
    def load(cls, run_dir: Path) -> "TrackingState | None":
        """Load the stored state, or return None.

        Raises:
            StorageError: the file is invalid.
        """
        path = RunFolder(run_dir).tracking
        if not path.exists():
            return None
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except (ValueError, TypeError) as error:
            raise StorageError(
                f"cannot read the tracking state: {error}",
                str(path),
                "restore it from a backup. For an unfinished run, delete it instead: the resumed "
                "run is uploaded from the start",
                code="state-unreadable",
            ) from None

    def save(self, run_dir: Path) -> None:
        """Save the state; thread-safe."""
        with _saving:
            write_atomically(RunFolder(run_dir).tracking, json.dumps(asdict(self)))


def has_unsent(run_dir: Path) -> bool:
    """Return whether the run in this folder has data that was not uploaded. False if there is no
    run.

    Raises:
        StorageError: the stored state cannot be read.
    """
    state = TrackingState.load(run_dir)
    return state is not None and not state.status_sent


@dataclass
class Uploader:
    """Uploader of a run folder to a tracking store.

    Methods propagate MLflow's exceptions and can safely be retried. ``check`` raises if a newer
    attempt has taken over the run. ``monitored`` enables MLflow's system metrics.
    """

    run_dir: Path
    uri: str
    state: TrackingState
    check: Callable[[], None] = lambda: None
    monitored: bool = False

    def __post_init__(self) -> None:
        self._folder = RunFolder(self.run_dir)
        self._monitor: SystemMetricsMonitor | None = None
        self._opened: MlflowClient | None = None
        self._completions_sent = 0  # bytes of completions.jsonl
        self._rewriting = Lock()
        self._rewrites = 0  # how often the record was rewritten

    def connect(self) -> None:
        """Find or create the MLflow run and log its parameters, once.

        Raises:
            StorageError: MLflow is not reachable or rejects the request.
        """
        self.check()  # check before reading the files: a newer attempt may be rewriting them
        if self._opened is not None:
            return
        client = connect(self.uri)
        state = self.state
        experiment_id = find_experiment(client, self.uri, state.experiment)
        times = recorded_times(self._folder.metrics)
        run_id = open_run(
            client,
            self.uri,
            experiment_id,
            run_name=state.run_name,
            tags=state.tags,
            key=state.key,
            started=times and times[0],
        )
        retry(lambda: self._describe(client, run_id), self.uri)
        if (state.uri, state.run_id) != (self.uri, run_id):
            state.metrics_sent = 0
        state.uri = self.uri
        state.run_id = run_id
        self.check()
        state.save(self.run_dir)
        self._opened = client
        if self.monitored:
            from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

            self._monitor = SystemMetricsMonitor(run_id, resume_logging=True, tracking_uri=self.uri)
            self._monitor.start()

    @contextmanager
    def rewriting(self) -> Iterator[None]:
        """Send the record again from its start after it is rewritten in the block: MLflow ignores
        values that it already has.
        """
        with self._rewriting:
            self._rewrites += 1
            self.state.metrics_sent = 0
            self.state.save(self.run_dir)
            yield

    def send_all(self) -> None:
        """Upload everything that is on disk now."""
        self.connect()
        while self._send_metrics():
            pass
        self._send_completions()

    def finish(self, otherwise: str = "FINISHED", ended: int | None = None) -> None:
        """Upload everything and set the final status; ``otherwise`` is used if the run has none.

        ``ended`` is the end time [ms since 1970], default now.
        """
        self.send_all()
        for path in (self._folder.correctness, self._folder.evaluation):
            self._send_file(self._client, self._run_id, path)
        if self._monitor is not None:
            self._monitor.finish()
        self._client.set_terminated(self._run_id, self.state.status or otherwise, ended)
        self.state.status_sent = True
        self.check()
        self.state.save(self.run_dir)

    @property
    def _client(self) -> "MlflowClient":
        assert self._opened is not None, "call connect() first"
        self.check()  # before each request
        return self._opened

    @property
    def _run_id(self) -> str:
        assert self.state.run_id is not None, "connect() was not called"
        return self.state.run_id

    def _describe(self, client: "MlflowClient", run_id: str) -> None:
        log_missing_params(client, run_id, dotted_values(read_yaml(self._folder.config).data))
        for path in (self._folder.config, self._folder.inputs):
            self._send_file(client, run_id, path)
        if CHANGES_TAG in self.state.tags:
            client.set_tag(run_id, CHANGES_TAG, self.state.tags[CHANGES_TAG])

    def _send_file(self, client: "MlflowClient", run_id: str, path: Path) -> None:
        if path.is_file():
            client.log_artifact(run_id, str(path))

    def _send_metrics(self) -> bool:
        """Upload one batch of metric records. Return False if none are left."""
        path = self._folder.metrics
        rewrites = self._rewrites
        offset = self.state.metrics_sent
        if not path.exists() or path.stat().st_size <= offset:
            return False
        batch: list[Any] = []
        for record, end in read_json_lines(path, offset):
            line = [_metric(record, name) for name in metric_values(record)]
            if batch and len(batch) + len(line) > _MAX_METRICS_PER_BATCH:
                break
            batch += line
            offset = end
        if offset == self.state.metrics_sent:
            return False
        for start in range(0, len(batch), _MAX_METRICS_PER_BATCH):
            self._client.log_batch(
                self._run_id, metrics=batch[start : start + _MAX_METRICS_PER_BATCH]
            )
        self.check()
        with self._rewriting:
            if rewrites == self._rewrites:
                self.state.metrics_sent = offset
                self.state.save(self.run_dir)
        return True

    def _send_completions(self) -> None:
        """Upload the completions table if it has grown."""
        path = self._folder.completions
        if not path.exists() or path.stat().st_size <= self._completions_sent:
            return
        lines = list(read_json_lines(path))
        rows = [record for record, _ in lines[-_MAX_TABLE_ROWS:]]
        columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
        # same format as MlflowClient.log_table, which would download and re-upload the table for
        # every row
        data = []
        for row in rows:
            data.append([row.get(name) for name in columns])
        table = {"columns": columns, "data": data}
        self._client.log_dict(self._run_id, table, COMPLETIONS_TABLE)
        kind = json.dumps([{"path": COMPLETIONS_TABLE, "type": "table"}])
        self._client.set_tag(self._run_id, "mlflow.loggedArtifacts", kind)
        self._completions_sent = lines[-1][1] if lines else 0


def _metric(record: Record, name: str) -> Any:
    from mlflow.entities import Metric

    return Metric(mlflow_name(name), record[name], round(record["time"] * 1000), record["step"])
