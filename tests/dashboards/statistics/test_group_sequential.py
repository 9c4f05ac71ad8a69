import math

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.group_sequential import (
    Spending,
    claim_spending,
    decide,
    integrated_boundaries,
    simulated_boundaries,
)
from dashboards.statistics.rounds import null_paths

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
    thresholds = simulated_boundaries(large_sample_paths, spent)
    assert thresholds[2:] == pytest.approx(published[2:], abs=0.06)
    # t of 119 degrees of freedom, at 4 in 10,000
    assert thresholds[1] == pytest.approx(published[1], abs=0.15)
    assert thresholds[0] == pytest.approx(published[0], abs=0.1 if published[0] < 3 else 1)


def test_boundaries_of_one_analysis_are_the_normal_quantile():
    assert integrated_boundaries((3.0,), claim_spending(0.05))[0] == pytest.approx(1.6449, abs=1e-3)


@pytest.mark.parametrize("level", [0.1, 0.01])
@pytest.mark.parametrize("exponent", [0.7, 1.0])
def test_boundaries_are_crossed_with_the_probability_of_the_level(level, exponent):
    information = (1.0, 2.0, 4.0, 8.0, 9.0)
    bounds = np.array(integrated_boundaries(information, Spending(level, exponent)))
    steps = np.sqrt(np.diff([0.0, *information]))
    generator = np.random.default_rng(0)
    draws = 400_000
    scores = np.cumsum(generator.standard_normal((draws, 5)) * steps, axis=1)
    crossed = (scores / np.sqrt(information) > bounds).any(axis=1).mean()
    assert crossed == pytest.approx(level, abs=4 * (level / draws) ** 0.5)


def test_decisions():
    assert [
        decide(interval, 0.01) for interval in [(0.001, 0.1), (-1, 0.009), (-1, -0.1), (-1, 0.02)]
    ] == ["better", "not better", "worse", "undecided"]
