import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.blocks import UNKNOWN, learned


def scores_with(correlation, configurations=12, seeds=5, seed=0):
    generator = np.random.default_rng(seed)
    common = generator.standard_normal(seeds)
    own = generator.standard_normal((configurations, seeds))
    rows = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
    return {str(number): dict(enumerate(map(float, row))) for number, row in enumerate(rows)}


def test_the_correlation_by_hand():
    """Three configurations on two seeds: mean squares of 13.5 for seeds and 0.5 for the rest."""
    scores = {"a": {0: 0.0, 1: 3.0}, "b": {0: 0.0, 1: 2.0}, "c": {0: 1.0, 1: 5.0}}
    rows = np.array([list(row.values()) for row in scores.values()])
    assert 3 * rows.mean(axis=0).var(ddof=1) == pytest.approx(13.5)
    blocks = learned(scores)
    assert blocks.correlation == pytest.approx((27 - 1) / (27 + 2))
    low = 27 / stats.f.ppf(0.95, 1, 2)
    high = 27 * stats.f.ppf(0.95, 2, 1)
    assert blocks.interval == pytest.approx(((low - 1) / (low + 2), (high - 1) / (high + 2)))
    assert blocks.known is True and blocks.how == "learned"


def test_seeds_are_blocks_if_scores_clearly_correlate():
    assert learned(scores_with(0.8)).known is True
    assert learned(scores_with(0.0)).known is False
    # clear, but too small for pairing to pay
    weak = learned(scores_with(0.15, configurations=200, seeds=20))
    assert weak.interval[0] > 0 and weak.known is False


def test_one_configuration_teaches_nothing():
    assert learned({"a": {0: 0.1, 1: 0.2}}) == UNKNOWN
    assert learned({"a": {0: 0.1}, "b": {0: 0.2}}) == UNKNOWN


def test_the_interval_covers_the_correlation_of_nine_in_ten():
    for correlation in (0.0, 0.5):
        covered = []
        for seed in range(400):
            low, high = learned(scores_with(correlation, seed=seed)).interval
            covered.append(low <= correlation <= high)
        assert 0.85 <= np.mean(covered) <= 0.95
