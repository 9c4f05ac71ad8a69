"""Additional metric writers: TensorBoard, Weights & Biases and trackio (``tracking.report_to``).

MLflow and ``metrics.jsonl`` are the authoritative record; these writers only mirror it. A writer
that fails is disabled for the rest of the run, with a warning.

accelerate's trackers cannot be used: they need accelerate's state, which a run without DeepSpeed
does not have. Creating it on rank 0 only would select device and backend a second time.
"""

import hashlib
import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loptune.errors import ConfigError
from loptune.extras import is_installed
from loptune.progress import MetricValues
from trainer.config.tracking import HasTracking
from trainer.types import RunContext

_logger = logging.getLogger(__name__)

# writer -> hint if it fails to start
_START_HINTS = {"wandb": "run `wandb login`, or set WANDB_MODE=offline"}


class TensorBoardWriter:
    """Writer of event files in ``RUN/tensorboard``, for ``tensorboard --logdir runs``. It has the
    same methods as a W&B run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events: Any = None

    def log(self, metrics: MetricValues, step: int) -> None:
        """Write scalars. In a resumed run, the first call removes the earlier records of its step
        and of all later steps.
        """
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self._folder), purge_step=step)
        for name, value in metrics.items():
            self._events.add_scalar(name, value, step)

    def finish(self) -> None:
        """Close the event file."""
        if self._events is not None:
            self._events.close()


def _open(name: str, config: HasTracking, context: RunContext, key: str) -> Any:
    """Open a W&B, trackio (same interface) or TensorBoard run; ``key`` identifies it."""
    if name == "tensorboard":
        return TensorBoardWriter(context.run_dir / "tensorboard")
    run_id = hashlib.sha256(key.encode()).hexdigest()[:16]
    settings = _trackio_settings(context, run_id)
    if name == "wandb":
        settings = _wandb_settings(context, run_id)
    return importlib.import_module(name).init(
        project=context.experiment,
        resume="allow",
        config=config.model_dump(mode="json"),
        **settings,
    )


def _trackio_settings(context: RunContext, run_id: str) -> dict[str, Any]:
    """Return the arguments of ``trackio.init``, which identifies a run only by its name."""
    return {"name": f"{context.run_name}-{run_id[:6]}"}


def _wandb_settings(context: RunContext, run_id: str) -> dict[str, Any]:
    """Return the arguments of ``wandb.init``."""
    return {
        "name": context.run_name,
        "id": run_id,
        "dir": str(context.run_dir),
        "group": context.tags.get("loptune.sweep"),
    }


def check_installed(config: HasTracking) -> None:
    """Check that the packages of all writers are installed.

    Raises:
        ConfigError: a package is missing.
    """
    for name in config.tracking.report_to:
        if not is_installed(name):
            raise ConfigError(
                f"{name} is not installed",
                "tracking.report_to",
                f"pip install {name}",
                code="tracker-not-installed",
            )


class Writers:
    """The writers of a run; ``key`` identifies the run.

    Raises:
        ConfigError: a package is missing, or a writer failed to start.
    """

    def __init__(self, config: HasTracking, context: RunContext, key: str) -> None:
        check_installed(config)
        self._open: dict[str, Any] = {}
        for name in config.tracking.report_to:
            try:
                self._open[name] = _open(name, config, context, key)
            # third-party errors: no API key, no network, unknown project
            except Exception as error:
                self.close()
                raise ConfigError(
                    f"{name} failed to start: {error}",
                    "tracking.report_to",
                    _START_HINTS.get(name, f"leave {name} out of tracking.report_to"),
                    code="tracker-failed",
                ) from error

    def log(self, metrics: MetricValues, step: int) -> None:
        """Pass the metrics of a step to every writer."""
        self._each(lambda writer: writer.log(dict(metrics), step=step))

    def close(self) -> None:
        """Close every writer."""
        self._each(lambda writer: writer.finish())
        self._open.clear()

    def _each(self, call: Callable[[Any], None]) -> None:
        for name in list(self._open):
            try:
                call(self._open[name])
            except Exception as error:  # a failing mirror must not stop the run
                _logger.warning("disabled %s for the rest of the run: %s", name, error)
                del self._open[name]
