"""The trials of a sweep as a table."""

import math

import pytest

from loptune.errors import MissingError
from sweep import load_results
from tests.sweep.ended_sweeps import write_sweep


def test_a_row_for_every_trial_with_its_parameters_and_score(tmp_path):
    write_sweep(tmp_path)
    table = load_results("demo", tmp_path).set_index("trial")
    assert list(table.index) == [f"c00{number}-s{seed}" for number in range(4) for seed in (0, 1)]
    assert table.loc["c002-s1", ["configuration", "seed", "state", "score"]].tolist() == [
        2,
        1,
        "COMPLETE",
        0.6,
    ]
    assert table["algorithm.ar_alpha"].tolist() == [0.0, 0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3]
    failed = table.loc["c001-s1"]
    waiting = table.loc["c003-s1"]
    assert (failed["state"], failed["reason"]) == ("FAIL", "diverged at step 3: policy/loss is nan")
    assert waiting["state"] == "WAITING"
    assert math.isnan(failed["score"])
    assert math.isnan(waiting["score"])


def test_a_sweep_that_is_not_there(tmp_path):
    with pytest.raises(MissingError):
        load_results("none", tmp_path)
