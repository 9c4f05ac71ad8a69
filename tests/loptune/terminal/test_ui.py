"""MLflow's UI is served to this machine alone; tests/sweep/tracking/test_view.py asks a
real one.
"""

import os

import pytest

from loptune.terminal.ui import serve


def test_a_store_with_a_server_of_its_own_is_named(monkeypatch, capsys):
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("a server was started"))
    assert (
        serve("http://tracking:5000", 5000, lambda: "/#/experiments/1", "run a", "trainer ui a")
        == 0
    )
    assert capsys.readouterr().out == "MLflow: http://tracking:5000/#/experiments/1  (run a)\n"
