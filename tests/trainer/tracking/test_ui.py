"""MLflow's UI is served to this machine alone; tests/sweep/tracking/test_view.py asks a real one."""

import os
import socket

import pytest

from trainer.errors import ConfigError
from trainer.tracking.ui import serve


def test_the_server_listens_on_loopback_and_answers_its_own_names_alone(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve("sqlite:///store.db", port, "/#/experiments/1", "run a", "trainer ui a")
    (words,) = started
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert options["--host"] == "127.0.0.1"
    assert options["--port"] == str(port)
    assert options["--backend-store-uri"] == "sqlite:///store.db"
    assert options["--allowed-hosts"] == f"127.0.0.1:{port},localhost:{port}"
    link = f"http://127.0.0.1:{port}/#/experiments/1"
    assert capsys.readouterr().out == f"MLflow: {link}  (run a; up in a few seconds, Ctrl-C ends it)\n"


def test_a_port_in_use_is_refused_with_the_command_for_another(monkeypatch):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("a server was started"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use") as caught:
            serve("sqlite:///store.db", port, "", "run a", "trainer ui a")
    assert caught.value.hint == f"trainer ui a --port {port + 1}"
