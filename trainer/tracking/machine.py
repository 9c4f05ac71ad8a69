"""MLflow's system metrics of a run's machine, under the names that its pages look for.

MLflow's own monitor has a thread that writes past the record, so that a run that is resumed has some values twice.
Here its gauges are read by the thread that sends the record, and what they showed is logged with the next step.
"""

import logging
import threading
import time
from typing import Any

INTERVAL_S = 10.0  # between two logged values, as MLflow's monitor has it
PREFIX = "system/"

_logger = logging.getLogger(__name__)


class MachineGauges:
    """CPU, memory, disk, network and, where there is one, GPUs of this machine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # one thread reads, another takes the means
        self._gauges: list[Any] | None = None
        self._unread = True
        self._taken = -INTERVAL_S

    def read(self) -> None:
        """Read all gauges once; a gauge that fails is left out from then on. Imports MLflow."""
        with self._lock:
            if self._gauges is None:
                self._gauges = _gauges()
                return  # the first reading is of no time at all: the use of a CPU is one since the last
            for gauge in list(self._gauges):
                try:
                    gauge.collect_metrics()
                except Exception as error:
                    _logger.debug("left out from now on: %s: %s", type(gauge).__name__, error)
                    self._gauges.remove(gauge)
            self._unread = False

    def means(self) -> dict[str, float]:
        """Means of what was read since the last call; nothing within ``INTERVAL_S`` of it."""
        if time.monotonic() - self._taken < INTERVAL_S:
            return {}
        with self._lock:
            if self._unread:
                return {}
            self._taken, self._unread = time.monotonic(), True
            found: dict[str, float] = {}
            for gauge in self._gauges or ():
                found |= {PREFIX + name: float(value) for name, value in gauge.aggregate_metrics().items()}
                gauge.clear_metrics()
            return found


def _gauges() -> list[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    made = []
    for kind in (CPUMonitor, DiskMonitor, NetworkMonitor, GPUMonitor):
        try:
            gauge = kind()
            gauge.collect_metrics()
            gauge.clear_metrics()
            made.append(gauge)
        except Exception as error:  # no GPU, or no pynvml
            _logger.debug("no system metrics of %s: %s", kind.__name__, error)
    return made
