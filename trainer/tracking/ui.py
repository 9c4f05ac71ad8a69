"""MLflow's UI on this machine, for this machine alone."""

import os
import socket
import sys
from typing import NoReturn

from trainer.errors import ConfigError


def serve(uri: str, port: int, page: str, what: str, again: str) -> NoReturn:
    """Become an MLflow server on 127.0.0.1 that answers this machine's browser alone.

    It announces ``page`` and what it shows; ``again`` is the command to repeat with another port.

    Raises:
        ConfigError: the port is in use.
    """
    if not _is_free(port):
        raise ConfigError(f"port {port} is in use", "--port", f"{again} --port {port + 1}")
    print(f"MLflow: http://127.0.0.1:{port}{page}  ({what}; up in a few seconds, Ctrl-C ends it)", flush=True)
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")  # nothing here needs its job runners
    hosts = f"127.0.0.1:{port},localhost:{port}"
    os.execv(
        sys.executable,
        [
            sys.executable,
            *("-m", "mlflow", "ui", "--backend-store-uri", uri),
            *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            *("--allowed-hosts", hosts),
        ],
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
