import math

import numpy as np
import pytest

from dashboards.statistics.rank_agreement import parameter_weights, rank_agreement


def test_tau_counts_pairs_in_the_same_order() -> None:
    assert rank_agreement([1, 2, 3, 4], [10, 20, 40, 30]).value == pytest.approx(4 / 6)  # one of six pairs is turned
    assert rank_agreement([1, 2, 3, 4], [1, 2, 2, 3]).value == pytest.approx(5 / 6)  # a tie says nothing


def test_the_interval_holds_what_could_have_given_the_estimate() -> None:
    # All orders of n are alike where tau is 0: the same order has a chance of 1 in n!.
    for count in (4, 5, 6):
        found = rank_agreement(range(count), range(count))
        assert (found.value, found.high) == (1, 1)
        assert (found.low > 0) == (1 / math.factorial(count) < 0.05)
    five, six = (rank_agreement(range(count), range(count)).low for count in (5, 6))
    assert 0.1 < five < six < 0.8
    turned = rank_agreement(range(5), [5, 4, 3, 2, 1])
    assert turned.low == -1 and turned.high == pytest.approx(-five, abs=0.1)


def test_pairs_count_by_what_they_differ_in() -> None:
    points = [
        {"lr": 1e-5, "rule": "a"},
        {"lr": 1e-3, "rule": "a"},
        {"lr": 1e-5, "rule": "b"},
        {"lr": 1e-3, "rule": "b"},
    ]
    weights = parameter_weights([{**point, "same": 1} for point in points])
    assert sorted(weights) == ["lr", "rule"]
    assert weights["lr"][0].tolist() == [0, 1, 0, 0.125]  # against the last, half of the distance is the rule's
    # The order by lr is kept and that by rule turned round.
    here, there = [0.0, 4.0, 1.0, 5.0], [1.0, 5.0, 0.0, 4.0]
    assert rank_agreement(here, there, weights["lr"]).value == 1
    assert rank_agreement(here, there, weights["rule"]).value == pytest.approx((-2 + 2 / 8) / (2 + 2 / 8))
    nearly = np.ones((4, 4))
    nearly[0, 1] = 0.02  # the one pair that is turned round hardly counts
    found = rank_agreement([1, 2, 3, 4], [2, 1, 3, 4], nearly)
    assert found.low < found.value <= found.high and found.value == pytest.approx(4.98 / 5.02)
