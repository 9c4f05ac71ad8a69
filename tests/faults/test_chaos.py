"""A few of the faults of `make chaos`, on the embedded policy: the sweep ends as one that nobody
disturbed, bit for bit.
"""

import pytest

from tests.faults.chaos import compare

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_sweep_under_faults_ends_as_an_undisturbed_one(tmp_path):
    # killed daemons: test_daemons.py
    kinds = ["checkpoint", "MLflow", "scorer", "driver", "clock", "no MLflow"]
    happened, state = compare(tmp_path, 0, fake=False, kinds=kinds)
    assert happened == kinds
    assert {trial: of_trial["result"][0] for trial, of_trial in state.items()} == {
        f"c00{number}-s{seed}": "COMPLETE" for number in (0, 1) for seed in (0, 1)
    }
