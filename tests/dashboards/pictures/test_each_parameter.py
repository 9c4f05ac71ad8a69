import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import loptune as lt
from dashboards.pictures.each_parameter import each_parameter
from dashboards.words import signed

LRS = (1e-5, 2e-5, 1e-4)
SEEDS = (0, 1, 2)


def score(scale, lr, seed):
    """Group is 0.04 better, except at the largest lr; 2e-5 is the best lr."""
    noise = 0.01 * np.sin(7 * seed + 1e6 * lr + 3 * (scale == "group"))
    return 0.5 + 0.06 * (lr == 2e-5) + 0.04 * (scale == "group") * (lr < 1e-4) + noise


def grid():
    rows = []
    for scale, lr, seed in itertools.product(("none", "group"), LRS, SEEDS):
        rows.append({"scale_rewards": scale, "lr": lr, "seed": seed, "acc": score(scale, lr, seed)})
    return pd.DataFrame(rows)


def judged(table, **options):
    first = {"scale_rewards": "none", "lr": 1e-5}
    return lt.judge(
        table, by=["scale_rewards", "lr"], baseline=first, score="acc", fresh=True, **options
    )


def cells(picture):
    headings, rows = picture.table
    return {row[0]: dict(zip(headings, row, strict=True)) for row in rows}


def test_each_parameter_is_compared_at_equal_values_of_the_other():
    picture = each_parameter(judged(grid()).results)
    found = cells(picture)
    table = grid().pivot_table(index="seed", columns=["scale_rewards", "lr"], values="acc")
    difference = (table["group"] - table["none"]).to_numpy().mean()
    assert float(found["scale_rewards=group"]["difference"]) == pytest.approx(difference, abs=5e-4)
    of_lr = table.T.groupby("lr").mean().T
    gain = (of_lr[2e-5] - of_lr[1e-5]).mean()
    assert float(found["lr=2e-05"]["difference"]) == pytest.approx(gain, abs=5e-4)
    best = table["group"][2e-5].mean()
    assert found["scale_rewards=group"]["best mean"] == f"{best:.3f} at 2e-05"
    assert found["scale_rewards=none"]["result"] == "baseline"


def test_it_answers_as_judge_does_with_the_others_as_tasks():
    found = cells(each_parameter(judged(grid()).results))
    asked = lt.judge(
        grid(),
        by=["scale_rewards"],
        task=["lr"],
        baseline={"scale_rewards": "none"},
        score="acc",
        fresh=True,
    )
    (_, group) = asked.arms
    low, high = group.interval
    assert found["scale_rewards=group"]["90% interval"] == f"{signed(low)} to {signed(high)}"
    assert found["scale_rewards=group"]["result"] == group.outcome


def test_only_shared_settings_count_and_a_failed_run_fails_its_seed():
    table = grid()
    lacks = table[~((table.scale_rewards == "group") & (table.lr == 1e-4))].copy()
    lacks.loc[(lacks.scale_rewards == "none") & (lacks.lr == 1e-5) & (lacks.seed == 0), "acc"] = (
        None
    )
    found = cells(each_parameter(judged(lacks).results))
    assert "2 settings" in each_parameter(judged(lacks).results).sentence
    assert found["scale_rewards=none"]["failed"] == "1"
    assert found["scale_rewards=group"]["best mean"].endswith("at 2e-05")


@pytest.mark.parametrize("change", ["adaptive", "one parameter", "no crossing"])
def test_nothing_is_said_where_nothing_was_crossed(change):
    table = grid()
    if change == "one parameter":
        table = table[table.lr == 1e-5]
    if change == "no crossing":
        kept = {("none", 1e-5), ("group", 1e-5), ("none", 2e-5)}
        table = table[[pair in kept for pair in zip(table.scale_rewards, table.lr, strict=True)]]
    results = judged(table).results
    if change == "adaptive":
        results = replace(results, adaptive=True, name="sweep")
    assert each_parameter(results) is None
