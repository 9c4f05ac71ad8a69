"""The gate's decision on one proposal, against simulation."""

import numpy as np
import pytest

from dashboards.statistics import gate
from dashboards.statistics.campaign_noise import SeedModel


def _campaign(gain: float, level: float, generator: np.random.Generator) -> gate.Answer:
    model = SeedModel(sd=1.0, correlation=0.5, dof=60)
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
    assert np.mean([answer.difference.seeds for answer in said]) < 4


def test_a_worthwhile_gain_is_kept_about_as_often_as_promised():
    generator = np.random.default_rng(4)
    said = [_campaign(1.0, 0.01, generator) for _ in range(500)]
    kept = np.mean([answer.outcome == "keep" for answer in said])
    assert kept > 1 - gate.FUTILITY_ERROR - 0.08


def test_nothing_is_kept_on_fewer_than_eight_seeds():
    model = SeedModel(sd=0.01, correlation=0.0, dof=50)
    baseline = dict.fromkeys(range(8), 0.0)
    for count in (1, 2, 3, 6):
        proposal = dict.fromkeys(range(count), 100.0)
        said = gate.answer(
            proposal, baseline, model=model, worthwhile=0.05, level=0.01, most_seeds=32
        )
        assert said.outcome == "more"


def test_a_noisier_proposal_is_not_kept_for_one_lucky_seed():
    model = SeedModel(sd=0.1, correlation=0.0, dof=50)
    baseline = dict.fromkeys(range(8), 0.0)
    wild = dict(enumerate((3.0, -1.0, -1.0, 2.0, 3.0, -1.0, -1.0, 2.0)))
    calm = dict(enumerate((0.75, 0.7, 0.8, 0.75, 0.75, 0.7, 0.8, 0.75)))
    settings = {"model": model, "worthwhile": 0.2, "level": 0.01, "most_seeds": 8}
    assert gate.answer(calm, baseline, **settings).outcome == "keep"
    assert gate.answer(wild, baseline, **settings).outcome == "discard"


def test_runs_without_a_partner_are_refused():
    model = SeedModel(sd=1.0, correlation=0.0, dof=5)
    with pytest.raises(ValueError):
        gate.answer({9: 1.0}, {0: 1.0}, model=model, worthwhile=1, level=0.05, most_seeds=8)


def _guarded(loss: float, level: float, generator: np.random.Generator) -> gate.Answer:
    """Decide on a proposal with a gain that is beyond doubt, and a loss in margins of a guard."""
    model = SeedModel(sd=1.0, correlation=0.0, dof=10_000)
    score = {seed: float(seed % 2) for seed in range(32)}
    better = {seed: 100.0 + value for seed, value in score.items()}
    baseline, proposal = generator.standard_normal(32), generator.standard_normal(32) - loss
    count: int | None = 1
    while count is not None:
        guard = gate.GuardRuns(
            metric="length",
            margin=1.0,
            sign=-1,
            proposal=dict(enumerate(proposal[:count])),
            baseline=dict(enumerate(baseline[: max(8, count)])),
            model=model,
        )
        said = gate.answer(
            dict(list(better.items())[:count]),
            dict(list(score.items())[: max(8, count)]),
            model=model,
            worthwhile=1.0,
            level=level,
            most_seeds=32,
            guards=[guard],
        )
        count = said.next_seeds
    return said


def test_a_change_that_loses_the_margin_is_kept_with_at_most_the_level():
    generator = np.random.default_rng(5)
    level, tries = 0.1, 1500
    kept = np.mean([_guarded(1.0, level, generator).outcome == "keep" for _ in range(tries)])
    assert kept < level + 3 * (level * (1 - level) / tries) ** 0.5
    harmful = [_guarded(2.0, level, generator) for _ in range(200)]
    assert not any(answer.outcome == "keep" for answer in harmful)
    states = [answer.guard_state for answer in harmful]
    assert np.mean([state == "fails" for state in states]) > 0.9
    harmless = [_guarded(0.0, level, generator).outcome == "keep" for _ in range(200)]
    assert np.mean(harmless) > 0.8
