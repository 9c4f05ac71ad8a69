import numpy as np
import pytest
from scipy import stats

from benchmarks.verdict_on_real_runs import drawn, paired, widened


@pytest.mark.parametrize("seeds", [3, 5, 8])
def test_drawn_seeds_vary_as_those_of_a_population(seeds):
    generator = np.random.default_rng(0)
    table = generator.standard_normal((3000, 10))
    centered = table - table.mean(axis=1, keepdims=True)
    scores = widened(drawn(centered, 1, 10_000, generator)[:, :, :seeds])
    for first in (3, seeds):
        assert scores[:, :, :first].mean(axis=2).var() == pytest.approx(1 / first, rel=0.05)
    low, high = stats.binom.interval(0.9999, 10_000, 0.05)
    assert low <= paired(scores).sum() <= high
