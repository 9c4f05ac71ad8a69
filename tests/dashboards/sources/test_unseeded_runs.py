"""Tables without a column of seeds."""

import shlex

import pandas as pd
import pytest

from dashboards import judge
from dashboards.sources.places import select
from dashboards.sources.unseeded_runs import NOTE
from tests.refusals import refused

ROWS = pd.DataFrame(
    {"opt": ["adam"] * 4 + ["sgd"] * 4, "acc": [0.50, 0.51, 0.52, 0.53, 0.60, 0.61, 0.62, 0.63]}
)


def judged(table, **options):
    return judge(table, by=["opt"], baseline={"opt": "adam"}, score="acc", **options)


def test_without_seeds_every_row_is_a_run_of_its_own():
    verdict = judged(ROWS)
    base, arm = verdict.arms
    assert (base.runs, arm.runs, arm.missing) == (4, 4, 0)
    assert arm.layout == "unpaired" and round(arm.difference, 9) == 0.1
    assert NOTE in verdict.results.warnings
    assert "--paired" not in str(verdict)  # which would be refused
    assert "--paired" in str(judged(ROWS.assign(seed=range(8))))
    # a second table of fresh runs has numbers of its own
    fresh = judged(ROWS, fresh=ROWS.assign(acc=ROWS.acc + 0.001))
    assert fresh.results.fresh is not None


def test_a_column_called_seed_is_taken():
    table = ROWS.assign(seed=[0, 1, 2, 3] * 2)
    verdict = judged(table)
    assert verdict.arms[1].layout == "paired"
    named = judged(table.rename(columns={"seed": "config.seed"}))
    assert named.arms[1].layout == "paired"


def test_evaluations_are_assigned_to_runs_by_their_names():
    early = ROWS.assign(acc=0.1, step=5, run=[f"r{n}" for n in range(8)])
    late = ROWS.assign(step=10, run=[f"r{n}" for n in range(8)])
    table = pd.concat([early, late])
    verdict = judged(table, window=1)
    assert [arm.runs for arm in verdict.arms] == [4, 4]
    assert round(verdict.arms[1].difference, 9) == 0.1
    with refused("runs-not-told-apart"):
        judged(table.drop(columns="run"))
    with refused("one-seed"):  # rows of one configuration with a step each are one run
        judged(table[table.run.isin(["r0", "r4"])].drop(columns="run"))


def test_a_table_of_wandb_has_a_run_in_each_row():
    table = ROWS.assign(Name="ppo", State="finished", Created="2026", _step=10)
    assert [arm.runs for arm in judged(table).arms] == [4, 4]


def test_runs_without_seeds_cannot_be_paired():
    with refused("nothing-to-pair"):
        judged(ROWS, pairing="paired")


def test_pruned_runs_are_no_evidence():
    table = ROWS.assign(state=["PRUNED", "COMPLETE"] * 4)
    with refused("runs-pruned"):
        judged(table)
    other = ROWS.assign(state=["COMPLETE"] * 4 + ["PRUNED"] * 4)
    with refused("runs-pruned"):
        judged(other)
    # without a baseline, the first configuration is one of several
    against = {"by": ["opt"], "baseline": {}, "score": "acc", "against": 0.4}
    first = ROWS.assign(state=["COMPLETE", "PRUNED"] * 2 + ["COMPLETE"] * 4)
    judge(first, **against)
    with refused("runs-pruned", names=["every configuration"]):
        judge(table, **against)


@pytest.mark.parametrize("word", ["pruned", "TrialState.PRUNED", "Pruned (median, step 3)"])
def test_the_condition_for_unpruned_runs_selects_them(word):
    table = ROWS.assign(state=[word, "finished", "finished", "finished"] * 2)
    with refused("runs-pruned") as error:
        judged(table)
    condition = shlex.split(error.value.hint.partition("--where ")[2])[0]
    assert [arm.runs for arm in judged(select(table, condition)).arms] == [3, 3]
