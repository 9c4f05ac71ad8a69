import os

import pytest

from trainer import threads
from trainer.threads import SPIN_COUNT, limit_spinning, spin_variables


@pytest.fixture
def environment(monkeypatch):
    """An environment without the variables, which is put back afterwards."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize(
    ("load", "expected"),
    [(0.1, {"GOMP_SPINCOUNT": str(SPIN_COUNT)}), (1e3, {"OMP_WAIT_POLICY": "PASSIVE"})],
)
def test_threads_spin_briefly_and_sleep_on_a_busy_machine(environment, load, expected):
    environment.setattr(threads.os, "getloadavg", lambda: (load, load, load))

    limit_spinning()

    assert dict(os.environ) | expected == dict(os.environ)
    assert len({"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()) == 1


@pytest.mark.parametrize("name", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"])
def test_what_the_user_has_set_stays(environment, name):
    environment.setenv(name, "ACTIVE" if name == "OMP_WAIT_POLICY" else "7")
    before = dict(os.environ)

    limit_spinning()

    assert dict(os.environ) == before
    assert spin_variables(os.environ) == {}
