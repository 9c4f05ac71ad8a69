"""Further destinations of metrics: TensorBoard, Weights & Biases, trackio (``tracking.report_to``).

MLflow and ``metrics.jsonl`` are the record; what is written here is a view of it for those who look
elsewhere. A writer that fails is left out for the rest of the run, with a warning.

The trackers of accelerate cannot stand here: they log through its state, which a run without
DeepSpeed never has, and which, made by the first rank alone, would choose device and backend a
second time.
"""

import hashlib
import importlib
import logging
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainer.config.tracking import Tracked
from trainer.errors import ConfigError
from trainer.progress import MetricValues
from trainer.types import RunContext

_logger = logging.getLogger(__name__)


class TensorBoardWriter:
    """Event files in ``RUN/tensorboard``, to be read by ``tensorboard --logdir runs``; the
    interface of W&B's runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events: Any = None

    def log(self, metrics: MetricValues, step: int) -> None:
        """Write scalars; of a run that goes on, the first step takes the place of it and all later
        ones.
        """
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self._folder), purge_step=step)
        for name, value in metrics.items():
            self._events.add_scalar(name, value, step)

    def finish(self) -> None:
        """Flush and end the event file."""
        if self._events is not None:
            self._events.close()


def _open(name: str, config: Tracked, context: RunContext) -> Any:
    """Begin a run of W&B, of trackio, which has the same interface, or of TensorBoard."""
    if name == "tensorboard":
        return TensorBoardWriter(context.run_dir / "tensorboard")
    settings: dict[str, Any] = {
        "project": context.experiment,
        "name": context.run_name,
        "resume": "allow",
    }
    if name == "wandb":
        settings["id"] = hashlib.sha256(str(context.run_dir.resolve()).encode()).hexdigest()[:16]
        settings |= {"dir": str(context.run_dir), "group": context.tags.get("loptune.sweep")}
    return importlib.import_module(name).init(config=config.model_dump(mode="json"), **settings)


def check_installed(config: Tracked) -> None:
    """Look for the packages of all writers.

    Raises:
        ConfigError: one is not installed.
    """
    for name in config.tracking.report_to:
        module = find_spec(name)
        # without an origin it is a folder that happens to be called so
        if module is None or module.origin is None:
            raise ConfigError(
                f"{name} is not installed", "tracking.report_to", f"pip install {name}"
            )


class Writers:
    """The writers of a run.

    Raises:
        ConfigError: the package of one is not installed, or it refuses to begin.
    """

    def __init__(self, config: Tracked, context: RunContext) -> None:
        check_installed(config)
        self._open: dict[str, Any] = {}
        for name in config.tracking.report_to:
            try:
                self._open[name] = _open(name, config, context)
            except Exception as error:  # of another program's: no key, no network, no such project
                self.close()
                raise ConfigError(
                    f"{name} cannot begin: {error}", "tracking.report_to", f"{name} init"
                ) from error

    def log(self, metrics: MetricValues, step: int) -> None:
        """Hand the metrics of a step to every writer."""
        self._each(lambda writer: writer.log(dict(metrics), step=step))

    def close(self) -> None:
        """End every writer."""
        self._each(lambda writer: writer.finish())
        self._open.clear()

    def _each(self, call: Callable[[Any], None]) -> None:
        for name in list(self._open):
            try:
                call(self._open[name])
            except Exception as error:  # a view of the record must not end the run
                _logger.warning("%s is left out from here on: %s", name, error)
                del self._open[name]
