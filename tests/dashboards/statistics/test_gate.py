"""The gate's decision on one proposal: boundaries, estimates and levels against simulation."""

import numpy as np
import pytest

from dashboards.statistics import gate


def test_boundaries_of_one_analysis_are_the_normal_quantile():
    assert gate.boundaries((3.0,), 0.05, 1.0)[0] == pytest.approx(1.6449, abs=1e-3)


@pytest.mark.parametrize("level", [0.1, 0.01])
@pytest.mark.parametrize("exponent", [0.7, 1.0])
def test_boundaries_are_crossed_with_the_probability_of_the_level(level, exponent):
    information = (1.0, 2.0, 4.0, 8.0, 9.0)
    bounds = np.array(gate.boundaries(information, level, exponent))
    steps = np.sqrt(np.diff([0.0, *information]))
    generator = np.random.default_rng(0)
    draws = 400_000
    scores = np.cumsum(generator.standard_normal((draws, 5)) * steps, axis=1)
    crossed = (scores / np.sqrt(information) > bounds).any(axis=1).mean()
    assert crossed == pytest.approx(level, abs=4 * (level / draws) ** 0.5)


def test_the_estimate_is_paired_or_pooled_as_the_seeds_allow():
    proposal = {0: 1.0, 1: 3.0}
    baseline = {0: 0.5, 1: 1.5, 2: 9.0, 3: 9.0}
    uncorrelated = gate.SeedModel(sd=1.0, correlation=0.0, dof=10)
    gain, error = gate.estimate(proposal, baseline, uncorrelated)
    assert gain == pytest.approx(2.0 - 5.0)
    assert error == pytest.approx((1 / 2 + 1 / 4) ** 0.5)
    same = {seed: baseline[seed] for seed in proposal}
    correlated = gate.SeedModel(sd=1.0, correlation=0.5, dof=10)
    gain, error = gate.estimate(proposal, same, correlated)
    assert gain == pytest.approx(1.0)
    assert error == pytest.approx((2 * (1 - 0.5) / 2) ** 0.5)


def test_the_standard_error_of_the_estimate_is_that_of_simulated_runs():
    generator = np.random.default_rng(1)
    model = gate.SeedModel(sd=1.0, correlation=0.6, dof=100)
    gains = []
    for _ in range(20_000):
        shared = generator.standard_normal(8) * 0.6**0.5
        baseline = shared + generator.standard_normal(8) * 0.4**0.5
        proposal = shared[:2] + generator.standard_normal(2) * 0.4**0.5
        runs = dict(enumerate(proposal)), dict(enumerate(baseline))
        gains.append(gate.estimate(*runs, model)[0])
    expected = gate.relative_variance(2, 8, 0.6) ** 0.5
    assert np.std(gains) == pytest.approx(expected, rel=0.02)
    assert np.mean(gains) == pytest.approx(0.0, abs=0.02)


def test_the_noise_is_estimated_from_all_arms_and_their_shared_seeds():
    generator = np.random.default_rng(2)
    shared = generator.standard_normal(400) * 0.7**0.5
    first = dict(enumerate(5 + shared + generator.standard_normal(400) * 0.3**0.5))
    second = dict(enumerate(9 + shared + generator.standard_normal(400) * 0.3**0.5))
    model = gate.seed_model([first, second], [(second, first)])
    assert model is not None
    assert model.sd == pytest.approx(1.0, rel=0.1)
    assert model.dof == 798
    assert model.correlation == pytest.approx(0.6, abs=0.11)  # rounded down


def test_one_run_of_each_arm_tells_nothing_of_the_noise():
    assert gate.seed_model([{0: 1.0}, {0: 2.0}], [({0: 1.0}, {0: 2.0})]) is None


def _campaign(gain: float, level: float, generator: np.random.Generator) -> gate.Answer:
    model = gate.SeedModel(sd=1.0, correlation=0.5, dof=60)
    shared = generator.standard_normal(40) * 0.5**0.5
    baseline = shared + generator.standard_normal(40) * 0.5**0.5
    proposal = gain + shared + generator.standard_normal(40) * 0.5**0.5
    count = 1
    while True:
        total = max(8, count)
        said = gate.answer(
            dict(enumerate(proposal[:count])),
            dict(enumerate(baseline[:total])),
            model=model,
            worthwhile=1.0,
            level=level,
            most_seeds=32,
        )
        if said.outcome != "more":
            return said
        count = said.next_seeds


def test_no_effect_is_rarely_kept_and_costs_few_seeds():
    generator = np.random.default_rng(3)
    said = [_campaign(0.0, 0.05, generator) for _ in range(1500)]
    kept = np.mean([answer.outcome == "keep" for answer in said])
    assert kept < 0.05 + 3 * (0.05 * 0.95 / 1500) ** 0.5
    assert np.mean([answer.seeds for answer in said]) < 4


def test_a_worthwhile_gain_is_kept_about_as_often_as_promised():
    generator = np.random.default_rng(4)
    said = [_campaign(1.0, 0.01, generator) for _ in range(500)]
    kept = np.mean([answer.outcome == "keep" for answer in said])
    assert kept > 1 - gate.FUTILITY_ERROR - 0.08


def test_nothing_is_kept_on_fewer_than_eight_seeds():
    model = gate.SeedModel(sd=0.01, correlation=0.0, dof=50)
    baseline = dict.fromkeys(range(8), 0.0)
    for count in (1, 2, 3, 6):
        proposal = dict.fromkeys(range(count), 100.0)
        said = gate.answer(
            proposal, baseline, model=model, worthwhile=0.05, level=0.01, most_seeds=32
        )
        assert said.outcome == "more"


def test_a_noisier_proposal_is_not_kept_for_one_lucky_seed():
    model = gate.SeedModel(sd=0.1, correlation=0.0, dof=50)
    baseline = dict.fromkeys(range(8), 0.0)
    wild = dict(enumerate((3.0, -1.0, -1.0, 2.0, 3.0, -1.0, -1.0, 2.0)))
    calm = dict(enumerate((0.75, 0.7, 0.8, 0.75, 0.75, 0.7, 0.8, 0.75)))
    settings = {"model": model, "worthwhile": 0.2, "level": 0.01, "most_seeds": 8}
    assert gate.answer(calm, baseline, **settings).outcome == "keep"
    assert gate.answer(wild, baseline, **settings).outcome == "discard"


def test_runs_without_a_partner_are_refused():
    model = gate.SeedModel(sd=1.0, correlation=0.0, dof=5)
    with pytest.raises(ValueError):
        gate.answer({9: 1.0}, {0: 1.0}, model=model, worthwhile=1, level=0.05, most_seeds=8)
