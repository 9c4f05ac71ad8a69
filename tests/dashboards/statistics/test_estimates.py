import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dashboards.statistics.estimates import importances, local_mean


def test_local_mean_of_a_constant_is_that_constant() -> None:
    grid, middle, low, high = local_mean([0, 0.25, 0.5, 0.75, 1], [2, 2, 2, 2, 2])
    assert grid[0] == 0 and grid[-1] == 1
    for curve in (middle, low, high):
        assert curve == pytest.approx(np.full(25, 2.0))


def test_local_mean_follows_its_neighbours() -> None:
    _, middle, low, high = local_mean([0, 0.1, 0.9, 1], [0, 0, 1, 1])
    assert middle[0] < 0.02 and middle[-1] > 0.98 and middle[12] == pytest.approx(0.5)
    assert (low <= high + 1e-12).all()


def test_the_band_of_a_local_mean_holds_ninety_percent() -> None:
    # At 0 only the first forty values weigh, half of them 1: their mean has a standard error of sqrt(1/4 / 40).
    _, _, low, high = local_mean([0.0] * 40 + [1.0] * 40, [0.0, 1.0] * 20 + [0.3] * 40)
    half = stats.norm.ppf(0.95) * np.sqrt(1 / 160)
    assert (low[0], high[0]) == pytest.approx((0.5 - half, 0.5 + half), abs=0.015)
    assert (low[-1], high[-1]) == pytest.approx((0.3, 0.3), abs=1e-4)


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
    assert found[0].parameter == "alpha" and found[0].share.value > found[0].share.low > 0.8 > found[0].chance
    assert {one.parameter for one in found} == {"alpha", "noise", "algorithm"}
    for one in found[1:]:
        assert one.share.value < 0.15
        assert one.share.low <= one.share.value <= one.share.high


def test_importance_of_a_word() -> None:
    table = settings()
    table["algorithm"] = ["grpo", "rloo", "maxrl", "rloo"] * 10
    table["mean"] = table.algorithm.map({"grpo": 0, "rloo": 1, "maxrl": 2}) + table.noise / 100
    first, _ = importances(table, ["alpha", "algorithm"])
    assert first.parameter == "algorithm"
    # Ranks of 10, 20 and 10 in a row: the squares within are 10 * 99 / 12 twice and 20 * 399 / 12.
    within, total = (2 * 10 * 99 + 20 * 399) / 12, 40 * 1599 / 12
    assert first.share.value == pytest.approx(1 - (within / 37) / (total / 39))


def test_importance_sees_ranks_alone_and_chance_is_that_of_shuffled_scores() -> None:
    table = settings()
    steep = table.assign(mean=np.exp(40 * table["mean"]))
    found, again = (importances(one, ["noise", "alpha"]) for one in (table, steep))
    assert found == again
    # By chance R^2 of a parabola in 40 points has the distribution Beta(1, 37 / 2).
    largest = stats.beta(1, 37 / 2).ppf(0.95)
    for one in found:
        assert one.chance == pytest.approx(1 - (1 - largest) * 39 / 37, abs=0.03)


def test_no_importance_from_a_handful_of_configurations() -> None:
    assert importances(settings(7), ["alpha"]) == []
    named = settings(8).assign(algorithm=list("abcdefgh"))
    assert importances(named, ["alpha", "algorithm"])[1].share.value == 0.0  # as many values as scores
