"""Run tracker: writes every record to disk immediately, and to MLflow asynchronously.

`log` appends to ``metrics.jsonl``, and a background thread uploads to MLflow in batches. A dead
server never blocks training: unsent records are uploaded when the server returns, when the run
ends, or by `upload`.
"""

import contextlib
import logging
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loptune.errors import MissingError, StorageError
from loptune.files import JsonLines, Record, read_json_lines, storage_error, write_atomically
from loptune.identity import identity
from loptune.mlflow_runs import RUN_TAG
from loptune.progress import MetricValues
from loptune.yaml_document import dump_yaml, read_yaml
from trainer.attempt import Attempt, SupersededError
from trainer.config.tracking import HasTracking, TrackingConfig
from trainer.run_folder import RunFolder
from trainer.tracking.mlflow_store import prepare_store, reason, retry, tracking_uri
from trainer.tracking.uploading import (
    TrackingState,
    Uploader,
    metrics_record,
    offset_after_step,
    recorded_times,
    recorded_values,
    values_of,
)
from trainer.tracking.writers import Writers
from trainer.types import RunContext

UPLOAD_INTERVAL_S = 1.0
_MAX_PAUSE_S = 10.0  # maximum retry interval while the server is unreachable
_LAST_PAUSE_S = 0.2  # retry interval during close
_CLOSE_LIMIT_S = 12.0

_logger = logging.getLogger(__name__)


class Tracker:
    """Tracker of one run.

    Finds the MLflow run by its tag ``loptune.run``, or creates it, and logs the flattened
    configuration as parameters and the resolved YAML as ``config.yaml``. With ``tracking.offline``
    only local files are written.

    Args:
        config: the resolved configuration of the run.
        context: folders and tags of the run. ``tags["loptune.run"]`` is its stable id; the default
            is the id in its folder, see `loptune.identity`.
        declared: whether metric names must be declared in ``loptune/declared_metrics.yaml``.
        must_connect: whether to raise if MLflow is not reachable at the start; otherwise connect
            later.
        close_limit_s: how long `close` may wait for MLflow [s].
        upload_after_s: delay between the first record and the first upload [s]; a run that closes
            earlier leaves all records to `upload`.

    Raises:
        StorageError: MLflow is not reachable, the SQLite store has no schema (call
            `prepare_store`), the run folder is not writable, or a newer attempt owns the run. Every
            method that writes also raises this last error.
        ConfigError: the tracking URI is invalid, or a package of ``tracking.report_to`` is missing
            or fails to start.
    """

    def __init__(
        self,
        config: HasTracking,
        context: RunContext,
        *,
        must_connect: bool = True,
        declared: bool = True,
        close_limit_s: float = _CLOSE_LIMIT_S,
        upload_after_s: float = 0.0,
    ) -> None:
        folder = RunFolder(context.run_dir)
        self.run_dir = context.run_dir
        self._attempt = Attempt(context.run_dir, context.attempt)
        self._close_limit_s = close_limit_s
        self._upload_after_s = upload_after_s
        self._is_left = False  # whether the records were left to `upload`
        self._attempt.check()
        self._state = _begin_record(config, context)
        self.uploader = self._make_uploader(config, context)
        if self.uploader is not None and must_connect:
            self.uploader.connect()
        self._metrics = JsonLines(folder.metrics)
        self._completions = JsonLines(folder.completions)
        self._correctness = JsonLines(folder.correctness)
        self._writers = Writers(config, context, self._state.key)
        self._declared = declared
        # values of the objective by training step, as recorded
        self.history = recorded_values(folder.metrics, context.metric)
        self._metric = context.metric
        self._last_step = 0
        self._earlier_end = 0  # bytes of the record that earlier processes wrote
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    @property
    def mlflow_run_id(self) -> str | None:
        """The run's id in MLflow; None before MLflow has it."""
        return self._state.run_id

    def _make_uploader(self, config: HasTracking, context: RunContext) -> Uploader | None:
        """Return the uploader to MLflow, or None if the run is offline."""
        if config.tracking.offline:
            return None
        uri = tracking_uri(config.tracking, context.runs_dir)
        monitored = config.tracking.system_metrics
        return Uploader(self.run_dir, uri, self._state, self._attempt.check, monitored)

    def log(self, metrics: MetricValues, step: int) -> None:
        """Record the metrics of a step. Never blocks on MLflow.

        Raises:
            KeyError: undeclared metric.
            StorageError: the record cannot be written; the error shows the missing step.
        """
        record = metrics_record(metrics, step, self._declared, self._attempt.number)
        self._append(self._metrics, step, record)
        if self._metric in metrics:
            self.history[step] = float(metrics[self._metric])
        self._last_step = max(self._last_step, step)
        self._start_shipping()
        self._writers.log(metrics, step)

    def summarize(self, metrics: MetricValues) -> None:
        """Record the run's ``final/*`` metrics at the last logged step."""
        self.log(metrics, self._last_step)

    def log_completions(self, rows: Sequence[Record], step: int) -> None:
        """Append completions (JSON values, same columns in every row) to the run's table."""
        self._append(self._completions, step, *({**row, "step": step} for row in rows))
        self._start_shipping()

    def log_correctness(self, record: Record, step: int) -> None:
        """Append per-problem correctness (see `trainer.evaluation.correctness`)."""
        self._append(self._correctness, step, {"step": step, **record})

    def rewind(self, step: int) -> None:
        """Drop records after ``step`` (-1: all), because these steps will be recomputed.

        Raises:
            StorageError: the run's folder cannot be written.
        """
        assert self._thread is None, "the run has already logged"
        self._attempt.check()
        self._state.metrics_sent = min(
            self._state.metrics_sent, offset_after_step(self._metrics.path, step)
        )
        try:
            self._state.save(self.run_dir)  # save before truncating the files
        except OSError as error:
            raise storage_error("write the run's record", self.run_dir, error) from error
        for lines in (self._metrics, self._completions, self._correctness):
            lines.cut(offset_after_step(lines.path, step))
        self.history = {at: value for at, value in self.history.items() if at <= step}
        self._last_step = max(step, 0)

    def begin_process(self) -> None:
        """Mark all records so far as written by earlier processes, see `abandon`."""
        self._earlier_end = self._metrics.path.stat().st_size

    def abandon(self, step: int) -> list[Record]:
        """Move the earlier processes' records after ``step`` to ``abandoned.jsonl``, because the
        running process resumed from an earlier step. May be called while the run logs.

        Returns:
            The moved records.

        Raises:
            StorageError: the run's folder cannot be written.
        """
        self._attempt.check()
        kept = []
        moved = []
        earlier_end = 0
        for record, end in read_json_lines(self._metrics.path):
            is_earlier = end <= self._earlier_end
            if is_earlier and record["step"] > step:
                moved.append(record)
                continue
            kept.append(record)
            if is_earlier:
                earlier_end = len(kept)
        JsonLines(RunFolder(self.run_dir).abandoned).append(*moved)
        with contextlib.ExitStack() as stack:
            if self.uploader is not None:
                stack.enter_context(self.uploader.rewriting())
            self._earlier_end = self._metrics.rewrite(kept, earlier_end)
        self.history = values_of(kept, self._metric)
        return moved

    def close(self, status: str = "FINISHED") -> bool:
        """Upload the remaining records and the run's ``status`` (FINISHED, FAILED or KILLED) within
        ``close_limit_s``, and close. Return False if the record in MLflow is incomplete, unless it
        was left to `upload` on purpose.
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
        if self.uploader is None:
            return True
        self._start_shipping()
        assert self._thread is not None, "the upload thread was not started"
        # a call to an unresponsive server cannot be canceled
        self._thread.join(self._close_limit_s + 1.0)
        if self._is_left:
            return True
        if not self._state.status_sent:
            _logger.warning(
                "MLflow at %s is missing part of the run, but no data is lost; upload it with: "
                "trainer upload %s",
                self.uploader.uri,
                shlex.quote(str(self.run_dir)),
            )
        return self._state.status_sent

    def _append(self, lines: JsonLines, step: int, *records: Record) -> None:
        self._attempt.check()
        try:
            lines.append(*records)
        except StorageError as error:
            raise StorageError(
                f"{error.what}; the record of step {step} is missing",
                error.where,
                error.hint,
                error.key,
                code=error.code,
            ) from error

    def _start_shipping(self) -> None:
        if self.uploader is not None and self._thread is None:
            self._thread = threading.Thread(
                target=self._upload_loop, args=(self.uploader,), name="mlflow-shipper", daemon=True
            )
            self._thread.start()

    def _upload_loop(self, shipper: Uploader) -> None:
        """Upload during the run; after `close`, upload the remaining records and the status within
        the time limit.
        """
        if self._upload_after_s > 0 and self._closing.wait(self._upload_after_s):
            self._is_left = True
            return
        pause = UPLOAD_INTERVAL_S
        with contextlib.suppress(SupersededError):
            while not self._closing.wait(pause):
                error = _failure(shipper.send_all)
                if error is None and pause > UPLOAD_INTERVAL_S:
                    _logger.warning("MLflow is reachable again; the missing metrics were uploaded")
                elif error is not None and pause == UPLOAD_INTERVAL_S:
                    _logger.warning("upload to MLflow failed, will retry: %s", reason(error))
                pause = UPLOAD_INTERVAL_S if error is None else min(2 * pause, _MAX_PAUSE_S)
            deadline = time.monotonic() + self._close_limit_s
            while error := _failure(shipper.finish):
                if time.monotonic() + _LAST_PAUSE_S > deadline:
                    _logger.warning("upload to MLflow failed: %s", reason(error))
                    return
                time.sleep(_LAST_PAUSE_S)


def _failure(action: Callable[[], None]) -> Exception | None:
    """Run an action and return its exception, or None. An MLflow failure must not stop training:
    the record is on disk. Only a `SupersededError` is raised.
    """
    try:
        action()
    except SupersededError:
        raise
    except Exception as error:
        return error
    return None


class NullTracker:
    """Tracker that records nothing, for ranks other than 0."""

    def __init__(self) -> None:
        self.history: dict[int, float] = {}

    def _ignore(self, *given: Any, **named: Any) -> None:
        pass

    log = summarize = log_completions = log_correctness = rewind = _ignore

    def close(self, status: str = "FINISHED") -> bool:
        """Return True: nothing is left to send."""
        return True


def upload(run_dir: Path, uri: str | None = None, tags: Mapping[str, str] | None = None) -> str:
    """Upload to MLflow a finished run that was recorded offline or whose server failed.

    ``uri`` overrides the tracking URI of the run's configuration, and ``tags`` are added to the
    run's tags.

    Returns:
        The id of the MLflow run.

    Raises:
        MissingError: no run in this folder.
        StorageError: MLflow is not reachable or rejects the data.
    """
    folder = RunFolder(run_dir)
    state = TrackingState.load(run_dir)
    if state is None or not folder.config.exists():
        raise MissingError(
            "no run in this folder",
            str(run_dir),
            "pass a folder that contains tracking.json",
            code="no-such-run",
        )
    state.tags |= tags or {}
    settings = TrackingConfig.model_validate(read_yaml(folder.config).data.get("tracking", {}))
    target = uri or tracking_uri(settings, Path(state.runs_dir))
    prepare_store(target)
    shipper = Uploader(run_dir, target, state)
    # a run without a status was killed
    times = recorded_times(folder.metrics)
    retry(lambda: shipper.finish("KILLED", times and times[1]), target)
    assert state.run_id is not None
    return state.run_id


def _begin_record(config: HasTracking, context: RunContext) -> TrackingState:
    """Write the run's configuration and tracking state to its folder, and return the state.

    Raises:
        StorageError: the folder is not writable.
    """
    run_dir = context.run_dir
    try:
        run_dir.mkdir(parents=context.attempt == 0, exist_ok=True)
        write_atomically(RunFolder(run_dir).config, dump_yaml(config.model_dump(mode="json")))
        state = _load_state(config, context)
        state.save(run_dir)
    except OSError as error:
        raise storage_error("start the run's record", run_dir, error) from error
    return state


def _load_state(config: HasTracking, context: RunContext) -> TrackingState:
    """Load the tracking state of this folder, or create a new one, and update its tags."""
    tags = {**config.tracking.tags, **context.tags}
    stored = TrackingState.load(context.run_dir)
    own = identity(context.run_dir, stored.key if stored else "")
    key = tags.pop(RUN_TAG, own)
    # no state yet, or the state of the run that this folder was copied from
    if stored is None or (stored.key != key and stored.key != own):
        stored = TrackingState(key, context.experiment, context.run_name, tags, "")
    state = stored
    state.key = key
    state.tags = tags
    state.status = None
    state.status_sent = False
    state.runs_dir = str(context.runs_dir.resolve())
    return state
