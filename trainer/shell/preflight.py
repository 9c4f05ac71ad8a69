"""Checks that run before torch and the model are loaded."""

import errno
import logging
import os
import socket
from pathlib import Path

from trainer.config.schema import TrainConfig
from trainer.errors import ConfigError
from trainer.tracking.mlflow_store import check_store, tracking_uri
from trainer.tracking.writers import check_installed

_logger = logging.getLogger(__name__)


def share_cores() -> None:
    """Set OMP_WAIT_POLICY=PASSIVE if the machine is busy, so that threads do not spin while
    waiting. Call before importing torch.
    """
    if "OMP_WAIT_POLICY" not in os.environ and os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        _logger.info(
            "other programs use this machine's cores, so threads of this run sleep while they wait "
            "(OMP_WAIT_POLICY=PASSIVE was set; to keep them spinning, set it to ACTIVE yourself)"
        )


def check_reports(config: TrainConfig, runs_dir: Path) -> None:
    """Check that the tracking store and reporting packages are available.

    Raises:
        ConfigError, StorageError: the run could not report.
    """
    check_installed(config)
    if not config.tracking.offline:
        check_store(tracking_uri(config.tracking, runs_dir))


def check_port(port: int, again: str, host: str = "127.0.0.1") -> None:
    """Raise if the port cannot be used. ``again`` is the command to suggest with another port.

    Raises:
        ConfigError: the port is in use, or the host is not a local address.
    """
    try:
        with socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        ):
            pass
    except OSError as error:
        fault = (
            "is in use"
            if error.errno == errno.EADDRINUSE
            else f"of {host} cannot be used: {error.strerror}"
        )
        raise ConfigError(
            f"port {port} {fault}", "--port", f"{again} --port {port + 1}", code="port-in-use"
        ) from None
