import numpy as np
import pytest
from scipy import stats

from research import verdict_on_real_runs
from research.verdict_on_real_runs import better_mean, drawn, measured, paired, widened


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


def test_a_claim_is_wrong_where_unseen_seeds_do_not_show_it(monkeypatch):
    noise = np.random.default_rng(0).standard_normal((200, 10))
    apart = np.arange(200.0)[:, None] + 0.01 * noise
    monkeypatch.setattr(verdict_on_real_runs, "studies", lambda: {"equal": noise, "apart": apart})
    levels, claimed, wrong, total = measured(better_mean, 1, 5, 2000)
    # Half of the cases of each are claimed; of those of equal means half are wrong, of the others
    # none.
    assert claimed == total == pytest.approx(2000, rel=0.1)
    assert wrong == pytest.approx(500, rel=0.15)
    assert levels == pytest.approx([0.5, 0.5], abs=0.05)
