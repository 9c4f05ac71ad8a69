"""Local MLflow UI, and the check of a port before a server starts."""

import errno
import os
import socket
import sys
from collections.abc import Callable

from loptune.errors import ConfigError, described
from loptune.section import LARGEST_PORT


def serve(uri: str, port: int, page: Callable[[], str], what: str) -> int:
    """Replace this process with an MLflow server that is only reachable from this machine.

    Prints the URL and its description ``what`` first. ``page`` returns the part of the URL after
    the port, and is called after the port has been checked. If the store ``uri`` is an MLflow
    server, only its URL is printed, and 0 is returned.

    Raises:
        ConfigError: the port cannot be used.
    """
    if uri.startswith("http"):
        print(f"MLflow: {uri}{page()}  ({what})")
        return 0
    check_port(port)
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


def check_port(port: int, host: str = "127.0.0.1") -> None:
    """Raise if a server cannot listen on the port of this host.

    Raises:
        ConfigError: the port is in use or needs root, or the host is not an address of this
            machine.
    """
    try:
        with socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        ):
            pass
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            other = port + 1 if port < LARGEST_PORT else port - 1
            fault, where, hint = "is in use", "--port", f"choose another port: --port {other}"
        elif error.errno == errno.EACCES:
            fault, where = "is reserved for root", "--port"
            hint = "choose a port above 1023: --port 8000"
        else:
            fault, where = f"of {host} cannot be used: {described(error)}", "--host"
            hint = "pass an address of this machine, such as --host 127.0.0.1"
        raise ConfigError(f"port {port} {fault}", where, hint, code="port-unusable") from None
