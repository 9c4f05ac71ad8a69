"""Rows without seeds: independent runs, or the evaluations of one run."""

import numpy as np
import pandas as pd
import pytest

from dashboards import judge
from dashboards.sources.row_order import check_order
from dashboards.sources.run_columns import RunColumns
from loptune.errors import ConfigError
from tests.refusals import refused


def curves(seed: int = 0) -> pd.DataFrame:
    """Twenty evaluations of one run for each of two optimizers."""
    chance = np.random.default_rng(seed)
    grown = 1 - np.exp(-np.arange(1, 21) / 5)
    tables = []
    for name, best in (("adam", 0.5), ("sgd", 0.6)):
        scores = best * grown + chance.normal(0, 0.004, len(grown))
        tables.append(pd.DataFrame({"opt": name, "acc": scores}))
    return pd.concat(tables, ignore_index=True)


def judged(table, **options):
    return judge(table, by=["opt"], baseline={"opt": "adam"}, score="acc", **options)


def test_the_rows_of_learning_curves_are_not_counted_as_runs():
    table = curves()
    with refused("rows-in-order") as error:
        judged(table)
    assert "--unpaired" in error.value.hint
    assert [arm.runs for arm in judged(table, pairing="unpaired").arms] == [20, 20]
    shuffled = table.sample(frac=1, random_state=0)
    assert [arm.runs for arm in judged(shuffled).arms] == [20, 20]


def test_lists_of_scores_may_be_curves_too():
    table = curves()
    cells = table.groupby("opt").acc.agg(list).reset_index()
    with refused("rows-in-order"):
        judged(cells)


def test_a_table_sorted_by_its_score_is_accepted():
    best_first = curves().sort_values("acc", ascending=False)
    assert [arm.runs for arm in judged(best_first).arms] == [20, 20]


@pytest.mark.parametrize("rows", [3, 10])
def test_independent_rows_are_rarely_rejected(rows):
    chance = np.random.default_rng(rows)
    columns = RunColumns(by=["opt"], score="acc", baseline={"opt": 0})
    tables, rejected = 300, 0
    for _ in range(tables):
        scores = chance.standard_t(3, size=4 * rows)
        table = pd.DataFrame({"opt": np.repeat(range(4), rows), "acc": scores})
        try:
            check_order(table, columns)
        except ConfigError:
            rejected += 1
    assert rejected <= 4  # 0.3 expected; more than 4 in one test of 60,000
