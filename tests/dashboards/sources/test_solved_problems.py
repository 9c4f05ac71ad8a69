"""Per-problem results belong to one run each, and reproduce its score."""

import pandas as pd
import pytest

from dashboards import judge
from tests.dashboards.test_judging import ASKED
from tests.refusals import refused

SOLVED = {0: [1, 0, 0, 1], 1: [1, 1, 0, 1], 2: [1, 0, 0, 0], 3: [1, 1, 1, 1]}  # trial -> problems


def table(names=(0, 1, 2, 3)):
    scores = [sum(row) / len(row) for row in SOLVED.values()]
    rows = {"loss": ["grpo", "grpo", "dapo", "dapo"], "seed": [0, 1, 0, 1], "acc": scores}
    return pd.DataFrame({**rows, "trial": list(names)})


def problems(**columns):
    rows = []
    for trial, solved in SOLVED.items():
        rows += [(trial, problem, correct) for problem, correct in enumerate(solved)]
    return pd.DataFrame(rows, columns=["trial", "problem", "correct"]).assign(**columns)


def solved(runs, rows):
    trials = judge(runs, **ASKED, problems=rows).results.trials
    return {(trial.configuration, trial.seed): trial.solved for trial in trials}


def test_each_run_gets_its_problems():
    expected = dict(zip([("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")], SOLVED, strict=True))
    assert solved(table(), problems()) == {run: tuple(SOLVED[n]) for run, n in expected.items()}


def test_integer_names_match_if_pandas_has_made_them_floats():
    rows = problems()
    rows.loc[len(rows)] = [None, 0, 1]  # a record without a run
    assert rows.trial.dtype == float
    assert solved(table(), rows) == solved(table(), problems())
    assert solved(table([0.0, 1.0, 2.0, 3.0]), problems()) == solved(table(), problems())


def test_runs_with_one_name_cannot_be_told_apart():
    with refused("repeated-run-name", names=["--trial"]):
        solved(table([0, 1, 0, 1]), problems())


def test_a_table_without_problems_is_rejected():
    with refused("no-rows"):
        solved(table(), problems()[:0])


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        (problems()[:-1], "lacks 1 of 4 problems"),
        (problems()[:-4], "lacks 4 of 4 problems"),
        (problems(correct=1), "average 1"),
    ],
)
def test_the_problems_of_a_run_reproduce_its_score(rows, name):
    with refused("problems-differ", names=[name]):
        solved(table(), rows)
