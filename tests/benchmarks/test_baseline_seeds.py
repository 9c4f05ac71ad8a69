import numpy as np
import pytest

from benchmarks.baseline_seeds import Sweep, pairs


@pytest.mark.parametrize("share", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("sweep", [Sweep(3, 4, 0), Sweep(3, 4, 6)])
def test_the_statistics_are_standard_normal_without_an_effect(sweep: Sweep, share: float):
    statistics = sweep.statistics(share, 0.0, 40_000)
    assert statistics.mean(axis=0) == pytest.approx(0, abs=0.03)
    assert statistics.std(axis=0) == pytest.approx(1, abs=0.02)


def test_no_other_weight_of_the_extra_seeds_has_less_variance():
    share, n, m = 0.4, 3, 10
    weights = np.linspace(0, 1, 1001)
    variance = (1 - share) * (1 + (1 - weights) ** 2) / n + weights**2 * (share / n + 1 / m)
    assert weights[variance.argmin()] == pytest.approx((1 - share) * m / (n + m), abs=1e-3)


def test_both_designs_of_a_pair_have_the_same_trials():
    assert [equal.trials for equal, _ in pairs()] == [more.trials for _, more in pairs()] == [12, 24, 30, 40, 96]
