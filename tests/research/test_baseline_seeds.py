import pytest

from research.baseline_seeds import Sweep


@pytest.mark.parametrize("fraction", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("sweep", [Sweep(3, 4, 0), Sweep(3, 4, 6)])
def test_the_statistics_are_standard_normal_without_an_effect(sweep, fraction):
    statistics = sweep.statistics(fraction, 0.0, 40_000)
    assert statistics.mean(axis=0) == pytest.approx(0, abs=0.03)
    assert statistics.std(axis=0) == pytest.approx(1, abs=0.02)
