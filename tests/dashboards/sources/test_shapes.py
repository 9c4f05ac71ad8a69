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


def test_a_column_per_configuration_needs_no_seeds():
    beside = WIDE.T.reset_index(drop=True).rename_axis(columns=None)
    costs = beside.assign(runtime=[50.0, 51.0, 52.0, 50.5], date="2026", memory_gb=40)
    for table in (beside, beside.assign(mean=0.5), beside.reset_index(), costs):
        verdict = judged(table)
        assert [arm.runs for arm in verdict.arms] == [4, 4, 4]
        assert verdict.arms[1].layout == "unpaired"
    arms = list(beside)
    beside.loc[3, arms[1]] = None  # blank below its last score: a run less
    beside.loc[0, arms[2]] = None  # blank above: a failed run
    counts = sorted((arm.runs, arm.failed) for arm in judged(beside).arms)
    assert counts == [(3, 0), (4, 0), (4, 1)]


def test_columns_of_configurations_may_be_called_runs():
    names = {"grpo": "file", "dapo": "run A", "gspo": "trial 2"}
    beside = WIDE.T.reset_index(drop=True).rename_axis(columns=None).rename(columns=names)
    for table in (beside, beside.assign(seed=range(4))):
        verdict = judged(table, baseline={"loss": "file"})
        assert [arm.runs for arm in verdict.arms] == [4, 4, 4]
        assert verdict.verdict.difference == pytest.approx(0.1)


def test_a_step_beside_columns_of_configurations_makes_each_one_run():
    beside = WIDE.T.reset_index(drop=True).rename_axis(columns=None)
    with refused("one-seed"):
        judged(beside.assign(iter_num=[0, 10, 20, 30]))


def test_the_name_of_a_metric_in_a_table_with_a_row_per_metric_is_found():
    long = runs().melt(id_vars=["loss", "seed"], value_vars=["acc"], var_name="metric")
    with refused("unknown-column") as error:
        judged(long, seed="seed")
    assert "--where metric=acc" in error.value.hint
    assert len(judged(long[long.metric == "acc"], seed="seed", score="value").arms) == 3


def test_brackets_nested_too_deeply_are_text():
    table = runs().assign(remark="[" * 200_000)
    assert len(judged(table, seed="seed").arms) == 3


def test_names_in_the_header_of_a_table_on_its_side_keep_their_decimals():
    rows = [["accuracy", "[0.5, 0.51, 0.52]", "[0.61, 0.62, 0.6]", "[0.5, 0.52, 0.51]"]]
    side = pd.DataFrame(rows, columns=["model", "base", "qwen2.5", "qwen2.0"])
    verdict = judge(side, by=["model"], baseline={"model": "base"}, score="accuracy")
    assert [(arm.name, arm.runs) for arm in verdict.arms] == [
        ("#0 model=base", 3),
        ("#1 model=qwen2.5", 3),
        ("#2 model=qwen2.0", 3),
    ]


def test_a_table_on_its_side_may_have_a_row_named_like_its_first_column():
    side = runs().set_index("loss").T.rename_axis("name").reset_index()
    side.columns = ["seed", *side.columns[1:]]
    assert [arm.runs for arm in judged(side).arms] == [4, 4, 4]
    loss = pd.DataFrame([["loss", *runs().loss]])
    named = pd.concat([loss, side.T.reset_index(drop=True).T], ignore_index=True)
    named.columns = ["seed", *map(str, range(12))]
    assert [arm.runs for arm in judged(named).arms] == [4, 4, 4]
