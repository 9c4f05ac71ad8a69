import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dashboards.statistics.estimates import importances


def settings(count: int = 40) -> pd.DataFrame:
    generator = np.random.default_rng(1)
    alpha = generator.uniform(0, 1, count)
    return pd.DataFrame(
        {
            "alpha": alpha,
            "noise": generator.uniform(0, 1, count),
            "algorithm": generator.choice(["grpo", "rpp"], count),
            "constant": 1.0,
            "eta": [None, *alpha[1:]],  # a parameter that one configuration does not have
            "mean": -((alpha - 0.5) ** 2),
        }
    )


def test_importance_sees_an_optimum_in_the_middle_and_no_influence_where_there_is_none() -> None:
    found = importances(settings(), ["noise", "alpha", "algorithm", "constant", "eta"])
    assert found[0].parameter == "alpha" and found[0].share > 0.8 > found[0].chance
    assert {one.parameter for one in found} == {"alpha", "noise", "algorithm"}
    for one in found[1:]:
        assert one.share < 0.15


def test_importance_of_a_word() -> None:
    table = settings()
    table["algorithm"] = ["grpo", "rloo", "maxrl", "rloo"] * 10
    table["mean"] = table.algorithm.map({"grpo": 0, "rloo": 1, "maxrl": 2}) + table.noise / 100
    first, _ = importances(table, ["alpha", "algorithm"])
    assert first.parameter == "algorithm"
    # Ranks of 10, 20 and 10 in a row: the squares within are 10 * 99 / 12 twice and 20 * 399 / 12.
    within, total = (2 * 10 * 99 + 20 * 399) / 12, 40 * 1599 / 12
    assert first.share == pytest.approx(1 - (within / 37) / (total / 39))


def test_importance_sees_ranks_alone_and_chance_is_that_of_an_f_test() -> None:
    table = settings()
    steep = table.assign(mean=np.exp(40 * table["mean"]))
    found, again = (importances(one, ["noise", "alpha"]) for one in (table, steep))
    assert found == again
    # By chance R^2 of a parabola in 40 points has the distribution Beta(1, 37 / 2).
    largest = stats.beta(1, 37 / 2).ppf(0.95)
    for one in found:
        assert one.chance == pytest.approx(1 - (1 - largest) * 39 / 37)


def test_no_importance_from_a_handful_of_configurations() -> None:
    assert importances(settings(7), ["alpha"]) == []
    named = settings(8).assign(algorithm=list("abcdefgh"))
    assert [one.parameter for one in importances(named, ["alpha", "algorithm"])] == [
        "alpha"
    ]  # as many words as scores
