"""The noise of a campaign and the estimate of a gain, against simulation."""

import numpy as np
import pytest

from dashboards.statistics import campaign_noise


def test_the_estimate_is_paired_or_pooled_as_the_seeds_allow():
    proposal = {0: 1.0, 1: 3.0}
    baseline = {0: 0.5, 1: 1.5, 2: 9.0, 3: 9.0}
    uncorrelated = campaign_noise.SeedModel(sd=1.0, correlation=0.0, dof=10)
    gain, error = campaign_noise.estimate(proposal, baseline, uncorrelated)
    assert gain == pytest.approx(2.0 - 5.0)
    assert error == pytest.approx((1 / 2 + 1 / 4) ** 0.5)
    same = {seed: baseline[seed] for seed in proposal}
    correlated = campaign_noise.SeedModel(sd=1.0, correlation=0.5, dof=10)
    gain, error = campaign_noise.estimate(proposal, same, correlated)
    assert gain == pytest.approx(1.0)
    assert error == pytest.approx((2 * (1 - 0.5) / 2) ** 0.5)


def test_the_standard_error_of_the_estimate_is_that_of_simulated_runs():
    generator = np.random.default_rng(1)
    model = campaign_noise.SeedModel(sd=1.0, correlation=0.6, dof=100)
    gains = []
    for _ in range(20_000):
        shared = generator.standard_normal(8) * 0.6**0.5
        baseline = shared + generator.standard_normal(8) * 0.4**0.5
        proposal = shared[:2] + generator.standard_normal(2) * 0.4**0.5
        runs = dict(enumerate(proposal)), dict(enumerate(baseline))
        gains.append(campaign_noise.estimate(*runs, model)[0])
    expected = campaign_noise.relative_variance(2, 8, 0.6) ** 0.5
    assert np.std(gains) == pytest.approx(expected, rel=0.02)
    assert np.mean(gains) == pytest.approx(0.0, abs=0.02)


def test_the_noise_is_estimated_from_all_arms_and_their_shared_seeds():
    generator = np.random.default_rng(2)
    shared = generator.standard_normal(400) * 0.7**0.5
    first = dict(enumerate(5 + shared + generator.standard_normal(400) * 0.3**0.5))
    second = dict(enumerate(9 + shared + generator.standard_normal(400) * 0.3**0.5))
    model = campaign_noise.seed_model([first, second], [(second, first)])
    assert model is not None
    assert model.sd == pytest.approx(1.0, rel=0.1)
    assert model.dof == 798
    assert model.correlation == pytest.approx(0.6, abs=0.11)  # rounded down


def test_one_run_of_each_arm_tells_nothing_of_the_noise():
    assert campaign_noise.seed_model([{0: 1.0}, {0: 2.0}], [({0: 1.0}, {0: 2.0})]) is None
