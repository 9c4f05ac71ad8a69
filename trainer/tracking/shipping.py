"""Sending a run's local record to MLflow, and remembering how far that has come.

``metrics.jsonl`` is the queue. ``tracking.json`` beside it holds the offset up to which lines were sent. Where a
process dies, or an answer is lost, after MLflow has taken lines, these are sent again just as they were: MLflow keeps
one copy of equal (metric, step, time, value). Steps that a resumed run computes again are sent again too; of a step's
values the newest is that of the record.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from trainer.errors import StorageError
from trainer.files import Record, read_json_lines, write_atomically
from trainer.metrics.declared import COMPLETIONS_TABLE, declaration
from trainer.tracking.mlflow_store import mlflow_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

METRICS_FILE = "metrics.jsonl"
COMPLETIONS_FILE = "completions.jsonl"
STATE_FILE = "tracking.json"

_MAX_METRICS_PER_BATCH = 1000  # MLflow's limit for one request
_MAX_TABLE_ROWS = 400  # the table is uploaded whole each time; completions.jsonl keeps all rows


def end_of_step(path: Path, step: int) -> int:
    """Return the offset where lines of steps after ``step`` begin: steps are logged in order."""
    cut = 0
    for record, end in read_json_lines(path) if path.exists() else ():
        if record.get("step", 0) > step:
            break
        cut = end
    return cut


def metrics_record(metrics: Mapping[str, float], step: int) -> dict[str, Any]:
    """The line of one ``log``: step, time [s since 1970, to the millisecond] and the metrics.

    A value that is not finite is written as null and named under ``nonfinite``.

    Raises:
        KeyError: a name that ``trainer/metrics/declared.py`` does not declare.
    """
    record: dict[str, Any] = {"step": int(step), "time": round(time.time(), 3)}
    nonfinite: dict[str, str] = {}
    for name, value in metrics.items():
        declaration(name)
        number = float(value)
        if math.isfinite(number):
            record[name] = number
        else:
            record[name], nonfinite[name] = None, str(number)
    return {**record, "nonfinite": nonfinite} if nonfinite else record


def metric_values(record: Mapping[str, Any]) -> dict[str, float]:
    """The finite metrics of a line."""
    return {
        name: value
        for name, value in record.items()
        if value is not None and name not in ("step", "time", "nonfinite")
    }


def recorded_times(path: Path) -> tuple[int, int] | None:
    """When the first line began to be measured, and the last was written [ms since 1970]; None without lines."""
    records = [record for record, _ in read_json_lines(path)] if path.exists() else []
    if not records:
        return None
    first = records[0]
    seconds = float(first.get("time/evaluation") or first.get("time/step") or 0)
    return round(1000 * (first["time"] - seconds)), round(1000 * records[-1]["time"])


@dataclass
class TrackingState:
    """The state that lets a later process continue a run's MLflow record; stored as ``tracking.json``."""

    key: str  # value of the tag loptune.run
    experiment: str
    run_name: str
    tags: dict[str, str]
    runs_dir: str
    uri: str | None = None  # the store that run_id and the offsets belong to
    run_id: str | None = None
    metrics_sent: int = 0  # bytes of metrics.jsonl
    completions_sent: int = 0  # bytes of completions.jsonl
    artifacts: list[tuple[str, str]] = field(default_factory=list)  # (file, artifact folder) still to send
    status: str | None = None  # FINISHED, FAILED or KILLED once the run has ended
    status_sent: bool = False

    @classmethod
    def load(cls, run_dir: Path) -> "TrackingState | None":
        """The stored state, None where there is none.

        Raises:
            StorageError: the file is not what ``save`` wrote.
        """
        path = run_dir / STATE_FILE
        if not path.exists():
            return None
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise StorageError(
                f"cannot read the tracking state: {error}", str(path), "remove it to send the run anew"
            ) from None

    def reset(self) -> None:
        """Note that nothing has been sent: to another store, or to a run that was deleted."""
        self.metrics_sent = 0
        self.completions_sent = 0

    def save(self, run_dir: Path) -> None:
        """Replace the stored state."""
        write_atomically(run_dir / STATE_FILE, json.dumps(asdict(self)))


def has_unsent(run_dir: Path) -> bool:
    """Whether MLflow lacks something of the run in this folder; False where there is none.

    Raises:
        StorageError: the stored state cannot be read.
    """
    state = TrackingState.load(run_dir)
    if state is None:
        return False
    queues = ((METRICS_FILE, state.metrics_sent), (COMPLETIONS_FILE, state.completions_sent))
    waiting = any((run_dir / name).exists() and (run_dir / name).stat().st_size > sent for name, sent in queues)
    return waiting or bool(state.artifacts) or not state.status_sent


@dataclass
class Connection:
    """A store and how the run is opened there; the client once it is."""

    uri: str
    open: Callable[[TrackingState], tuple["MlflowClient", str]]  # gives client and run id
    check: Callable[[], None] = lambda: None  # raises where another attempt has taken over the run
    client: "MlflowClient | None" = None
    monitor: "SystemMetricsMonitor | None" = None


class Shipper:
    """Sends what a run directory holds beyond its state's offsets.

    Every method that talks to MLflow raises whatever MLflow raises and leaves the state as it was; calling
    it again is always safe.
    """

    def __init__(self, connection: "Connection", run_dir: Path, state: TrackingState, lock: Lock) -> None:
        self.connection = connection
        self._run_dir = run_dir
        self._state = state
        self._lock = lock  # guards the state; never held while MLflow is called

    def send_all(self) -> None:
        """Send everything that is on disk now."""
        self.connect()
        for send in (self._send_metrics, self._send_completions, self._send_artifact):
            while send():
                pass

    def connect(self) -> None:
        """Open the run in MLflow, where that has not been done yet.

        Raises:
            StorageError: MLflow does not answer, or refuses.
        """
        if self.connection.client is None:
            self.connection.check()
            client, run_id = self.connection.open(self._state)
            uri = self.connection.uri
            with self._remember():
                if (self._state.uri, self._state.run_id) != (uri, run_id):
                    self._state.reset()
                self._state.uri, self._state.run_id = uri, run_id
            self.connection.client = client

    @property
    def _client(self) -> "MlflowClient":
        assert self.connection.client is not None, "connect() comes first"
        self.connection.check()  # before each request
        return self.connection.client

    @property
    def _run_id(self) -> str:
        assert self._state.run_id is not None, "connect() comes first"
        return self._state.run_id

    def _send_metrics(self) -> bool:
        """Send one batch of lines; False when none is left."""
        batch: list[Any] = []
        offset = self._state.metrics_sent
        path = self._run_dir / METRICS_FILE
        if not path.exists() or path.stat().st_size <= offset:
            return False
        for record, end in read_json_lines(path, offset):
            line = [_metric(record, name) for name in metric_values(record)]
            if batch and len(batch) + len(line) > _MAX_METRICS_PER_BATCH:
                break
            batch += line
            offset = end
        if offset == self._state.metrics_sent:
            return False
        for start in range(0, len(batch), _MAX_METRICS_PER_BATCH):
            self._client.log_batch(self._run_id, metrics=batch[start : start + _MAX_METRICS_PER_BATCH])
        with self._remember():
            self._state.metrics_sent = offset
        return True

    def finish(self, otherwise: str = "FINISHED", ended: int | None = None) -> None:
        """Send everything and the run's final status, or another if it has none.

        ``ended`` is when [ms since 1970], where that was not now.
        """
        self.send_all()
        if self.connection.monitor is not None:
            self.connection.monitor.finish()
        self._client.set_terminated(self._run_id, self._state.status or otherwise, ended)
        with self._remember():
            self._state.status_sent = True

    def _send_completions(self) -> bool:
        """Send the table of completions, whole."""
        path = self._run_dir / COMPLETIONS_FILE
        if not path.exists() or path.stat().st_size <= self._state.completions_sent:
            return False
        rows, offset = [], 0
        for record, end in read_json_lines(path):
            rows.append(record)
            offset = end
        rows = rows[-_MAX_TABLE_ROWS:]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        # The form of MlflowClient.log_table, which would download and send the whole table for every row.
        table = {"columns": columns, "data": [[row.get(name) for name in columns] for row in rows]}
        self._client.log_dict(self._run_id, table, COMPLETIONS_TABLE)
        kind = json.dumps([{"path": COMPLETIONS_TABLE, "type": "table"}])
        self._client.set_tag(self._run_id, "mlflow.loggedArtifacts", kind)
        with self._remember():
            self._state.completions_sent = offset
        return False

    def _send_artifact(self) -> bool:
        """Send one waiting file or folder; False when none is left."""
        if not self._state.artifacts:
            return False
        file, folder = self._state.artifacts[0]
        if Path(file).is_dir():
            self._client.log_artifacts(self._run_id, file, folder or None)
        elif Path(file).exists():
            self._client.log_artifact(self._run_id, file, folder or None)
        with self._remember():
            self._state.artifacts.pop(0)
        return True

    @contextmanager
    def _remember(self) -> Iterator[None]:
        with self._lock:
            self.connection.check()
            yield
            self._state.save(self._run_dir)


def _metric(record: Record, name: str) -> Any:
    from mlflow.entities import Metric

    return Metric(mlflow_name(name), record[name], round(record["time"] * 1000), record["step"])
