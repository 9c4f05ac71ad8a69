"""The only writer of a run's record: lines on disk at once, MLflow when it can be reached.

``log`` appends to ``metrics.jsonl`` and returns; a thread sends the lines to MLflow in batches. A
server that dies delays the sending and nothing else: what is not sent stays known and is sent when
the server returns, when the run ends, or by ``upload``.
"""

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.attempt import Attempt, SupersededError
from trainer.config.tracking import Tracked, TrackingConfig
from trainer.config.yaml_document import dump_yaml, read_yaml
from trainer.errors import MissingError, StorageError
from trainer.files import JsonLines, Record, storage_error, write_atomically
from trainer.metrics.tags import RUN_TAG
from trainer.progress import MetricValues
from trainer.run_folder import RunFolder
from trainer.tracking.mlflow_store import prepare_store, reason, retry, tracking_uri
from trainer.tracking.shipping import (
    Shipper,
    TrackingState,
    end_of_step,
    metrics_record,
    recorded_times,
)
from trainer.tracking.writers import Writers
from trainer.types import RunContext

SHIP_INTERVAL_S = 1.0
_MAX_PAUSE_S = 10.0  # between attempts while the server is away
_LAST_PAUSE_S = 0.2  # between attempts at the end
_CLOSE_LIMIT_S = 12.0

_logger = logging.getLogger(__name__)


class Tracker:
    """Records one run.

    Opening it finds the run's MLflow run again by its tag ``loptune.run``, or creates it, and logs
    the flattened configuration as parameters and the resolved YAML as ``config.yaml``. With
    ``tracking.offline`` only the local files are written.

    Args:
        config: the resolved configuration of the run.
        context: where the run lives; ``tags["loptune.run"]`` is its stable id, derived from the
            run's folder where absent.
        declared: whether names of metrics have to be those of ``trainer/metrics/declared.yaml``.
        must_connect: whether MLflow has to answer at the start; otherwise the run is opened once it
            does.
        close_limit_s: how long ``close`` may wait for MLflow [s].

    Raises:
        StorageError: MLflow cannot be reached, or a SQLite store was not prepared
            (``prepare_store``); the run's folder cannot be written, or is another attempt's. The
            last also from each method that writes.
    """

    def __init__(
        self,
        config: Tracked,
        context: RunContext,
        *,
        must_connect: bool = True,
        declared: bool = True,
        close_limit_s: float = _CLOSE_LIMIT_S,
    ) -> None:
        self.run_dir = context.run_dir
        folder = RunFolder(context.run_dir)
        self._attempt = Attempt(context.run_dir, context.attempt)
        self._attempt.check()
        self._close_limit_s = close_limit_s
        self._shipper: Shipper | None = None
        try:
            self.run_dir.mkdir(parents=context.attempt == 0, exist_ok=True)
            write_atomically(folder.config, dump_yaml(config.model_dump(mode="json")))
            self._state = _load_state(config, context)
            self._state.save(self.run_dir)
        except OSError as error:
            raise storage_error("begin the run's record", self.run_dir, error) from error
        if not config.tracking.offline:
            uri = tracking_uri(config.tracking, context.runs_dir)
            monitored = config.tracking.system_metrics
            self._shipper = Shipper(self.run_dir, uri, self._state, self._attempt.check, monitored)
            if must_connect:
                self._shipper.connect()
        self._metrics = JsonLines(folder.metrics)
        self._completions = JsonLines(folder.completions)
        self._correctness = JsonLines(folder.correctness)
        self._writers = Writers(config, context)
        self._declared = declared
        self._last_step = 0
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def log(self, metrics: MetricValues, step: int) -> None:
        """Record metrics of a step. Never waits for MLflow.

        Raises:
            KeyError: a name that ``trainer/metrics/declared.yaml`` does not declare.
            StorageError: the record cannot be written; says from which step on it is missing.
        """
        self._append(self._metrics, step, metrics_record(metrics, step, self._declared))
        self._last_step = max(self._last_step, step)
        self._start_shipping()
        self._writers.log(metrics, step)

    def summarize(self, metrics: MetricValues) -> None:
        """Record the run's ``final/*`` values, at the last step logged."""
        self.log(metrics, self._last_step)

    def log_completions(self, rows: Sequence[Record], step: int) -> None:
        """Append sampled completions (JSON values, the same columns in every row) to the run's
        table.
        """
        self._append(self._completions, step, *({**row, "step": step} for row in rows))
        self._start_shipping()

    def log_correctness(self, record: Record, step: int) -> None:
        """Append which problems were answered correctly (`trainer.evaluation.correctness`)."""
        self._append(self._correctness, step, {"step": step, **record})

    def rewind(self, step: int) -> None:
        """Forget what was logged after ``step`` (-1: everything), before those steps are computed
        again.

        Raises:
            StorageError: the run's folder cannot be written.
        """
        assert self._thread is None, "a run is rewound before it logs"
        self._attempt.check()
        self._state.metrics_sent = min(
            self._state.metrics_sent, end_of_step(self._metrics.path, step)
        )
        try:
            self._state.save(self.run_dir)  # before the lines go
        except OSError as error:
            raise storage_error("write the run's record", self.run_dir, error) from error
        for lines in (self._metrics, self._completions, self._correctness):
            lines.cut(end_of_step(lines.path, step))
        self._last_step = max(step, 0)

    def close(self, status: str = "FINISHED") -> bool:
        """Send the rest within ``close_limit_s`` and end the record; False where MLflow lacks some
        of it then.
        """
        if self._closing.is_set():
            return True
        self._writers.close()
        self._state.status = status
        try:
            self._attempt.check()
            self._state.save(self.run_dir)
        except (OSError, StorageError) as error:
            _logger.warning("cannot end the run's record: %s", reason(error))
            return False
        finally:
            self._closing.set()
        if self._shipper is None:
            return True
        self._start_shipping()
        assert self._thread is not None, "it has begun"
        self._thread.join(self._close_limit_s + 1.0)  # a call to a hanging server cannot be ended
        if not self._state.status_sent:
            _logger.warning(
                "MLflow at %s does not have the whole run; nothing is lost: trainer upload %s",
                self._shipper.uri,
                self.run_dir,
            )
        return self._state.status_sent

    def _append(self, lines: JsonLines, step: int, *records: Record) -> None:
        self._attempt.check()
        try:
            lines.append(*records)
        except StorageError as error:
            raise StorageError(
                f"{error.what}; step {step} is missing", error.where, error.hint
            ) from error

    def _start_shipping(self) -> None:
        if self._shipper is not None and self._thread is None:
            self._thread = threading.Thread(
                target=self._ship, args=(self._shipper,), name="mlflow-shipper", daemon=True
            )
            self._thread.start()

    def _ship(self, shipper: Shipper) -> None:
        """Send while the run goes on, and its rest and status within the limit once it is
        closed.
        """
        pause = SHIP_INTERVAL_S
        with contextlib.suppress(SupersededError):
            while not self._closing.wait(pause):
                error = _failure(shipper.send_all)
                if error is None and pause > SHIP_INTERVAL_S:
                    _logger.warning("MLflow answers again; the missing metrics were sent")
                elif error is not None and pause == SHIP_INTERVAL_S:
                    _logger.warning("cannot send to MLflow, will try again: %s", reason(error))
                pause = SHIP_INTERVAL_S if error is None else min(2 * pause, _MAX_PAUSE_S)
            deadline = time.monotonic() + self._close_limit_s
            while error := _failure(shipper.finish):
                if time.monotonic() + _LAST_PAUSE_S > deadline:
                    _logger.warning("could not send to MLflow: %s", reason(error))
                    return
                time.sleep(_LAST_PAUSE_S)


def _failure(action: Callable[[], None]) -> Exception | None:
    """Carry out an action; training goes on whatever MLflow raises, for the record is on disk."""
    try:
        action()
    except SupersededError:
        raise
    except Exception as error:
        return error
    return None


class NullTracker:
    """A tracker that records nothing, for ranks other than 0."""

    def _ignore(self, *given: Any, **named: Any) -> None:
        pass

    log = summarize = log_completions = log_correctness = rewind = _ignore

    def close(self, status: str = "FINISHED") -> bool:
        """Return True: nothing is left to send."""
        return True


def upload(run_dir: Path, uri: str | None = None, tags: Mapping[str, str] | None = None) -> str:
    """Send what MLflow lacks of a run that has ended: one made offline, or one whose server died.

    The store is that of the run's configuration unless ``uri`` names another.

    Returns:
        The id of the MLflow run.

    Raises:
        MissingError: the folder holds no run.
        StorageError: MLflow cannot be reached or refuses the data.
    """
    folder = RunFolder(run_dir)
    state = TrackingState.load(run_dir)
    if state is None or not folder.config.exists():
        raise MissingError(
            "no run in this folder", str(run_dir), "name a folder that holds tracking.json"
        )
    state.tags |= tags or {}
    settings = TrackingConfig.model_validate(read_yaml(folder.config).data.get("tracking", {}))
    target = uri or tracking_uri(settings, Path(state.runs_dir))
    prepare_store(target)
    shipper = Shipper(run_dir, target, state)
    # A run that never closed was killed.
    times = recorded_times(folder.metrics)
    retry(lambda: shipper.finish("KILLED", times and times[1]), target)
    assert state.run_id is not None
    return state.run_id


def _load_state(config: Tracked, context: RunContext) -> TrackingState:
    """Return the state of an earlier process with this run's folder, or a fresh one; tags are
    today's.
    """
    tags = {**config.tracking.tags, **context.tags}
    stored = TrackingState.load(context.run_dir)
    place = hashlib.sha256(str(context.run_dir.resolve()).encode()).hexdigest()[:12]
    key = tags.pop(RUN_TAG, None) or (stored.key if stored else f"{context.run_dir.name}-{place}")
    state = stored or TrackingState(key, context.experiment, context.run_name, tags, "")
    state.key = key
    state.tags = tags
    state.status = None
    state.status_sent = False
    state.runs_dir = str(context.runs_dir.resolve())
    return state
