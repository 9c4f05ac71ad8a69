"""The test whether scores moved, beside SciPy's test of Welch."""

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.moved import moved


def test_the_change_is_tested_as_by_scipy():
    rng = np.random.default_rng(0)
    for shift, size in ((0.0, 8), (1.0, 5), (3.0, 12)):
        earlier = rng.normal(0, 1, 8)
        later = rng.normal(shift, 2, size)
        expected = stats.ttest_ind(later, earlier, equal_var=False)
        move = moved(list(earlier), list(later))
        assert move.p == pytest.approx(expected.pvalue)
        assert (move.low, move.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
        assert move.has_moved == (expected.pvalue < 0.05)


def test_scores_without_variation_have_moved_if_they_differ():
    assert not moved([0.5, 0.5], [0.5, 0.5]).has_moved
    assert moved([0.5, 0.5], [0.6, 0.6]).has_moved
    with pytest.raises(ValueError, match="two scores"):
        moved([0.5], [0.6, 0.7])
