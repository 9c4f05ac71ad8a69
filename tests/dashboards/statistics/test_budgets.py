"""Scores at the same amount of an axis, from curves on unequal grids."""

import math

import pytest

from dashboards.statistics.budgets import Budget, common_budget, score_at
from dashboards.trial import Curve

LINE = Curve((0, 10, 40), (0.0, 1.0, 4.0))  # value = place / 10


@pytest.mark.parametrize(
    ("at", "window", "expected"),
    [
        (40, 0, 4.0),
        (25, 0, 2.5),  # between two evaluations
        (40, 20, 3.0),
        (15, 10, 1.0),  # a window across an evaluation
        (10, 10, 0.5),
        (40, 40, 2.0),
    ],
)
def test_a_score_is_the_mean_of_the_interpolated_curve(at, window, expected):
    assert score_at(LINE, Budget("tokens", at, window)) == pytest.approx(expected)


def test_a_bend_in_the_window_counts_by_its_length():
    bent = Curve((0, 10, 20), (0.0, 0.0, 1.0))
    assert score_at(bent, Budget("tokens", 20, 20)) == pytest.approx(0.25)
    assert score_at(bent, Budget("tokens", 15, 10)) == pytest.approx(0.25 * 5 / 10)


@pytest.mark.parametrize(("at", "window"), [(41, 0), (40, 41), (41, 10)])
def test_nothing_is_read_beyond_the_ends_of_a_curve(at, window):
    assert math.isnan(score_at(LINE, Budget("tokens", at, window)))


def test_only_values_in_the_window_have_to_be_finite():
    curve = Curve((0, 10, 20, 30), (math.inf, 1.0, 1.0, math.inf))
    assert score_at(curve, Budget("tokens", 20, 10)) == 1.0
    assert math.isnan(score_at(curve, Budget("tokens", 25, 5)))


def test_the_common_budget_is_the_shortest_curves_end():
    late = Curve((36, 50), (0.0, 0.0))
    assert common_budget([LINE, late], "tokens") == Budget("tokens", 40, 4)
    assert common_budget([LINE, late], "tokens", at=38) == Budget("tokens", 38, 2)
    assert common_budget([LINE], "tokens", 30, 12) == Budget("tokens", 30, 12)
