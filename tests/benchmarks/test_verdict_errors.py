import math

import numpy as np
import pytest

from benchmarks.verdict_errors import AFTER, coarse, named, noisy_baseline, normal, one_noisier, own_test
from dashboards.statistics.seed_noise import Noise
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


def test_a_finalist_is_decided_like_in_its_verdict():
    scores = normal(np.random.default_rng(4), (60, 2, 7))
    scores[::2, 1] += 1.5
    differences = scores[:, 1] - scores[:, 0]
    claims = own_test(differences[:, :4], differences[:, 4:])
    own = [{"c1": Noise(float(row.std(ddof=1)), 2)} for row in differences[:, 4:]]
    alone = [verdict(named(one[:, :4]), "c0", own=noise) for one, noise in zip(scores, own, strict=True)]
    assert claims.tolist() == [one.evidence for one in alone]
    assert 5 < claims.sum() < 35


def test_a_noisier_finalist_is_claimed_falsely_no_more_than_once_in_twenty():
    scores = one_noisier(np.random.default_rng(5), (4000, 2, 6))
    differences = scores[:, 1] - scores[:, 0]
    for claims in (own_test(differences[:, :3]), own_test(differences[:, :3], differences[:, 3:])):
        assert claims.mean() <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 4000)
