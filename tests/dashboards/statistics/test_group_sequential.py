import math

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.dunnett import critical_value
from dashboards.statistics.group_sequential import (
    boundaries,
    decide,
    null_paths,
    schedule_analyses,
    spend,
)

FIVE = np.arange(1, 6) / 5


@pytest.fixture(scope="module")
def large_sample_paths():
    return null_paths((60, 120, 180, 240, 300), 1)[:, :, 0]


@pytest.mark.parametrize(
    ("spent", "published"),
    [
        (
            2 * stats.norm.sf(stats.norm.ppf(1 - 0.0125) / np.sqrt(FIVE)),
            [4.877, 3.357, 2.680, 2.290, 2.031],
        ),
        (0.025 * np.log(1 + (math.e - 1) * FIVE), [2.438, 2.427, 2.410, 2.397, 2.386]),
    ],
    ids=["O'Brien-Fleming", "Pocock"],
)
def test_boundaries_are_those_published_for_large_samples(large_sample_paths, spent, published):
    """Lan and DeMets, Biometrika 70 (1983): five looks, one-sided 2.5%; the first has a chance of
    5e-7.
    """
    thresholds = spend(large_sample_paths, spent)
    assert thresholds[2:] == pytest.approx(published[2:], abs=0.06)
    # t of 119 degrees of freedom, at 4 in 10,000
    assert thresholds[1] == pytest.approx(published[1], abs=0.15)
    assert thresholds[0] == pytest.approx(published[0], abs=0.1 if published[0] < 3 else 1)


def test_a_single_look_of_several_finalists_is_dunnetts_test():
    efficacy, futility = boundaries((4,), 3)
    assert efficacy[0] == pytest.approx(critical_value(3, 9), rel=0.02)
    assert futility[0] == pytest.approx(stats.t.isf(0.1, 3), rel=0.02)  # each is given up by itself


def test_looks_are_spread_over_the_seeds():
    assert schedule_analyses(3) == (3,)
    assert schedule_analyses(7) == (5, 6, 7)
    assert schedule_analyses(41) == (5, 10, 15, 20, 26, 31, 36, 41)


def test_decisions():
    assert [
        decide(low, high, 0.01) for low, high in [(0.001, 0.1), (-1, 0.009), (-1, -0.1), (-1, 0.02)]
    ] == ["better", "not better", "worse", "undecided"]
