"""Places that a run needs, tried first: before torch and the model, which take seconds to
minutes.
"""

import errno
import os
import socket
from pathlib import Path

from trainer.config.schema import TrainConfig
from trainer.errors import ConfigError
from trainer.tracking.mlflow_store import check_store, tracking_uri
from trainer.tracking.writers import check_installed


def share_cores() -> None:
    """Keep threads from busy waiting where other programs use the cores; before torch is
    imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ and os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        print("other programs use the cores: OMP_WAIT_POLICY=PASSIVE", flush=True)


def check_reports(config: TrainConfig, runs_dir: Path) -> None:
    """Look for the places that a run reports to.

    Raises:
        ConfigError, StorageError: what would keep the run from starting.
    """
    check_installed(config)
    if not config.tracking.offline:
        check_store(tracking_uri(config.tracking, runs_dir))


def check_port(port: int, again: str, host: str = "127.0.0.1") -> None:
    """Refuse a port that cannot be listened on; ``again`` is the command to repeat with another.

    Raises:
        ConfigError: it is in use, or the host is not one of this machine.
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
        raise ConfigError(f"port {port} {fault}", "--port", f"{again} --port {port + 1}") from None
