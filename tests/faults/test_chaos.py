"""A few of the faults of `make chaos`, on simulated trials: the sweep ends as one that nobody
disturbed.
"""

import pytest

from tests.faults.chaos import compare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_sweep_under_faults_ends_as_an_undisturbed_one(tmp_path):
    kinds = ["rank", "MLflow", "driver"]  # killed daemons: test_daemons.py
    happened, state = compare(tmp_path, 0, fake=True, kinds=kinds)
    assert happened == kinds
    assert {trial: of_trial["result"][0] for trial, of_trial in state.items()} == {
        f"c00{number}-s{seed}": "COMPLETE" for number in (0, 1) for seed in (0, 1)
    }
