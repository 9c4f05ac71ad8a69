import math

import numpy as np
import pytest

from benchmarks.verdict_errors import AFTER, BEFORE, coarse, named, noisy_baseline, normal, one_noisier
from dashboards.statistics.verdict import verdict


@pytest.mark.parametrize("kind", [normal, noisy_baseline])
@pytest.mark.parametrize(("configurations", "seeds"), [(3, 2), (5, 3), (10, 5)])
def test_many_sweeps_at_once_are_decided_like_each_alone(kind, configurations, seeds):
    scores = kind(np.random.default_rng(1), (40, configurations, seeds))
    scores[::2, 1] += 8
    claims, best = AFTER(scores)
    alone = [verdict(named(one), "c0") for one in scores]
    assert claims.tolist() == [one.evidence for one in alone]
    assert [f"c{number}" for number in best] == [one.best for one in alone]
    assert 3 < claims.sum() < 35


def test_a_configuration_with_a_missing_score_is_silent():
    scores = normal(np.random.default_rng(2), (20, 4, 3))
    scores[:, 2] += 30
    scores[:, 2, 1] = math.nan
    claims, best = AFTER(scores)
    assert claims.sum() <= 4 and 2 not in best


@pytest.mark.parametrize("kind", [normal, coarse, one_noisier, noisy_baseline])
@pytest.mark.parametrize(("configurations", "seeds"), [(8, 3), (10, 3), (12, 5)])
def test_no_effect_gives_evidence_in_no_more_than_one_sweep_of_twenty(kind, configurations, seeds):
    scores = kind(np.random.default_rng(11), (4000, configurations, seeds))
    assert AFTER(scores)[0].mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 4000)


def test_one_side_finds_more_than_two():
    scores = normal(np.random.default_rng(12), (4000, 10, 3))
    scores[:, 1] += 2
    now, before = (rule(scores)[0].mean() for rule in (AFTER, BEFORE))
    assert now > before + 0.04
