"""MLflow's UI is served to this machine alone; tests/sweep/tracking/test_view.py asks a
real one.
"""

import errno
import os
import socket

import pytest

from loptune.errors import ConfigError
from loptune.terminal.ui import check_port, serve
from tests.refusals import refused


def test_a_store_with_a_server_of_its_own_is_named(monkeypatch, capsys):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("a server was started"))
    assert serve("http://tracking:5000", 5000, lambda: "/#/experiments/1", "run a") == 0
    assert capsys.readouterr().out == "MLflow: http://tracking:5000/#/experiments/1  (run a)\n"


@pytest.mark.parametrize(
    ("number", "port", "key", "hint"),
    [
        (errno.EADDRINUSE, 5000, "--port", "--port 5001"),
        (errno.EADDRINUSE, 65535, "--port", "--port 65534"),
        (errno.EACCES, 80, "--port", "--port 8000"),
        (errno.EADDRNOTAVAIL, 5000, "--host", "--host 127.0.0.1"),
    ],
)
def test_the_hint_fits_the_reason_that_a_port_cannot_be_used(monkeypatch, number, port, key, hint):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "create_server", fail)
    with refused("port-unusable", ConfigError, names=(str(port),)) as caught:
        check_port(port)
    assert caught.value.where == key and caught.value.hint.endswith(hint)
