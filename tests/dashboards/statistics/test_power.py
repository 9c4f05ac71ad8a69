import math

import numpy as np
import pytest

from dashboards.statistics.power import (
    SeedsNeeded,
    minimum_detectable_effect,
    seeds_for,
    seeds_needed,
)
from research.verdict_errors import AFTER, normal


def test_sample_sizes_are_at_most_one_above_published_power_tables():
    # Paired t test, one-sided 5%, power 0.8: 27 pairs for d_z = 0.5 and 12 for d_z = 0.8 (Cohen
    # 1988, G*Power). The smaller level of few degrees of freedom costs one.
    assert seeds_for(0.5 * math.sqrt(2), 1.0, blocks=True) in (27, 28)
    assert seeds_for(0.8 * math.sqrt(2), 1.0, blocks=True) in (12, 13)
    # t test of two samples, at d = 0.5 and 0.8: 51 and 21 runs each (the same source)
    assert seeds_for(0.5, 1.0) in (51, 52)
    assert seeds_for(0.8, 1.0) in (21, 22)
    assert seeds_for(0.0, 1.0) is None
    assert seeds_for(0.01, 1.0) is None


def test_detectable_effect_needs_two_seeds():
    with pytest.raises(ValueError, match=r"\b2 seeds\b"):
        minimum_detectable_effect(0.1, 1)


def test_no_fewer_seeds_than_a_claim_needs_are_proposed():
    assert seeds_for(100.0, 1.0) == seeds_for(100.0, 1.0, blocks=True) == 3


def test_the_recommended_seeds_are_enough_for_four_users_in_five():
    """Five seeds estimate a standard deviation of 1; a gain of 2 takes five seeds at 80% power."""
    generator = np.random.default_rng(0)
    estimates = generator.standard_normal((400, 5)).std(axis=1, ddof=1)
    enough = [seeds_needed(2.0, float(sd), 4).enough for sd in estimates]
    true = seeds_for(2.0, 1.0)
    assert np.mean([seeds is None or seeds >= true for seeds in enough]) >= 0.8 - 2 * 0.02
    assert np.mean([seeds_for(2.0, float(sd)) >= true for sd in estimates]) < 0.65
    assert str(SeedsNeeded(4, 9)) == "4 to 9 seeds (plan for 9)"
    assert str(SeedsNeeded(None, None)) == "more than 100 seeds"


def test_known_noise_saves_seeds():
    # With the noise known for certain: (1.645 + 0.842) sqrt(2 / n) <= 1 from n = 13 on, had the
    # guard no price.
    assert 13 <= seeds_for(1.0, 1.0, known_dof=10**6) <= 15
    assert seeds_for(3.0, 1.0, known_dof=18) < seeds_for(3.0, 1.0)


@pytest.mark.parametrize(
    ("seeds", "configurations"), [(3, 2), (5, 2), (2, 3), (3, 4), (5, 9), (2, 8), (3, 8)]
)
def test_the_detectable_effect_is_found_eight_times_in_ten(seeds, configurations):
    scores = normal(np.random.default_rng(4), (8000, configurations, seeds))
    scores[:, 1] += minimum_detectable_effect(1.0, seeds, configurations)
    assert AFTER(scores)[0].mean() == pytest.approx(0.8, abs=0.02)  # more than four standard errors
