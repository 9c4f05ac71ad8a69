"""MLflow's UI is served to this machine alone; tests/sweep/tracking/test_view.py asks a real one."""

import os
import socket

import pytest

from trainer.tracking.ui import serve


def test_the_server_listens_on_loopback_and_answers_its_own_names_alone(monkeypatch, capsys):
    started = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve("sqlite:///store.db", port, "/#/experiments/1", "run a")
    (words,) = started
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert options["--host"] == "127.0.0.1"
    assert options["--port"] == str(port)
    assert options["--backend-store-uri"] == "sqlite:///store.db"
    assert options["--allowed-hosts"] == f"127.0.0.1:{port},localhost:{port}"
    link = f"http://127.0.0.1:{port}/#/experiments/1"
    assert capsys.readouterr().out == f"MLflow: {link}  (run a; up in a few seconds, Ctrl-C ends it)\n"


def test_a_store_with_a_server_of_its_own_is_named(monkeypatch, capsys):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("a server was started"))
    assert serve("http://tracking:5000", 5000, "/#/experiments/1", "run a") == 0
    assert capsys.readouterr().out == "MLflow: http://tracking:5000/#/experiments/1  (run a)\n"
