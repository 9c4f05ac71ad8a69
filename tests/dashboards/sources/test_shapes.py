"""Other shapes of tables than one row per run."""

import pandas as pd
import pytest

from dashboards import judge
from tests.dashboards.test_judging import ASKED, runs
from tests.refusals import refused

WIDE = runs().pivot(index="loss", columns="seed", values="acc")


def judged(table, **asked):
    return judge(table, **{**ASKED, "seed": "", **asked})


@pytest.mark.parametrize("name", ["Seed {}", "s{}", "run{}", "Run {}", "seed_{}", "{}", "trial {}"])
def test_a_column_per_seed_has_many_names(name):
    table = WIDE.set_axis([name.format(seed) for seed in WIDE], axis="columns").reset_index()
    summed = table.assign(mean=0.5, std=0.01)
    for each in (table, summed):
        verdict = judged(each)
        assert [arm.runs for arm in verdict.arms] == [4, 4, 4]
        assert verdict.verdict.difference == pytest.approx(0.1)


def test_a_column_per_seed_may_have_a_task_beside_it():
    table = pd.concat([WIDE.reset_index().assign(task=task) for task in ("a", "b")])
    with refused("not-repeats", names=["--task task"]):
        judged(table)
    assert judged(table, task=["task"]).arms[1].runs == 4


def test_a_table_on_its_side_is_turned():
    side = runs().set_index("loss").T.rename_axis("name").reset_index()
    verdict = judged(side)
    assert [arm.runs for arm in verdict.arms] == [4, 4, 4]
    assert verdict.verdict.difference == pytest.approx(0.1)


def test_lists_of_scores_are_runs():
    lists = runs().groupby("loss", as_index=False).acc.agg(list)
    for table in (lists, lists.assign(acc=lists.acc.map(str))):
        verdict = judged(table)
        assert [arm.runs for arm in verdict.arms] == [4, 4, 4]
        assert any("lists" in note for note in verdict.results.warnings)


@pytest.mark.parametrize("cell", ["0.51 ± 0.02", "51.2+/-1.3", "0.51 (0.02)"])
def test_means_with_deviations_are_no_runs(cell):
    with refused("summary-scores"):
        judged(runs().assign(acc=cell))
