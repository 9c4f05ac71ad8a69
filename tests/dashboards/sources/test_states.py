import pandas as pd
import pytest

from dashboards.sources.states import run_state


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        (["COMPLETE"], "COMPLETE"),
        (["RUNNING", "COMPLETE"], "RUNNING"),
        (["COMPLETE", "PRUNED", "RUNNING"], "PRUNED"),
        (["FAIL", "COMPLETE", "COMPLETE"], "FAIL"),
        (["PRUNED", "FAIL"], "FAIL"),
    ],
)
def test_the_worst_row_says_how_a_run_ended(rows, state):
    assert run_state(pd.Series(rows)) == state
