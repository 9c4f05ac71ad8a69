"""Local MLflow UI, and the check of a port before a server starts."""

import errno
import os
import socket
import sys
from collections.abc import Callable

from loptune.errors import ConfigError


def serve(uri: str, port: int, page: Callable[[], str], what: str, again: str) -> int:
    """Replace this process with an MLflow server that is only reachable from this machine.

    Prints the URL first. ``page`` returns the part of the URL after the port, and is called after
    the port has been checked. If the store is an MLflow server, only its URL is printed.

    Raises:
        ConfigError: the port is in use; ``again`` is the command to suggest with another port.
    """
    if uri.startswith("http"):
        print(f"MLflow: {uri}{page()}  ({what})")
        return 0
    check_port(port, again)
    print(
        f"MLflow: http://127.0.0.1:{port}{page()}  ({what}; ready in a few seconds; Ctrl-C "
        "stops it)",
        flush=True,
    )
    # MLflow's job runners are not needed
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    hosts = f"127.0.0.1:{port},localhost:{port}"
    os.execv(
        sys.executable,
        [
            sys.executable,
            *("-m", "mlflow", "ui", "--backend-store-uri", uri),
            *("--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
            # lifespan is only needed by MLflow's assistant, and causes a traceback on Ctrl-C
            *("--allowed-hosts", hosts, "--uvicorn-opts", "--lifespan off"),
        ],
    )


def check_port(port: int, again: str, host: str = "127.0.0.1") -> None:
    """Raise if the port cannot be used. ``again`` is the command to suggest with another port.

    Raises:
        ConfigError: a server cannot use the port, for example because it is in use or the host is
            not a local address.
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
