"""MLflow's UI on this machine, for this machine alone."""

import os
import sys
from collections.abc import Callable

from trainer.shell.preflight import check_port


def serve(uri: str, port: int, page: Callable[[], str], what: str, again: str) -> int:
    """Become an MLflow server on 127.0.0.1 that answers this machine's browser alone.

    It announces the page, asked for once the port is known to be free, and what it shows. Where a
    server has the store, it only says so, and returns 0.

    Raises:
        ConfigError: the port is in use; ``again`` is the command to repeat with another.
    """
    if uri.startswith("http"):
        print(f"MLflow: {uri}{page()}  ({what})")
        return 0
    check_port(port, again)
    print(
        f"MLflow: http://127.0.0.1:{port}{page()}  ({what}; up in a few seconds, Ctrl-C ends it)",
        flush=True,
    )
    # nothing here needs its job runners
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    hosts = f"127.0.0.1:{port},localhost:{port}"
    os.execv(
        sys.executable,
        [
            sys.executable,
            *("-m", "mlflow", "ui", "--backend-store-uri", uri),
            *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            # which serves MLflow's assistant alone, and would end Ctrl-C with a traceback
            *("--allowed-hosts", hosts, "--uvicorn-opts", "--lifespan off"),
        ],
    )
