"""The replay of campaigns: it decides as the gate does, and its figures keep their order."""

import numpy as np
import pytest

from dashboards.statistics import gate
from dashboards.statistics.campaign_noise import seed_model
from dashboards.statistics.online_levels import lord_level
from research import gate_campaigns
from research.gate_campaigns import (
    KeepTest,
    Levels,
    Scenario,
    Sums,
    World,
    answers,
    gated,
    seeds_each,
)


def campaign(rng, proposals):
    """Return random runs [proposals, seeds] of proposals and their baselines, NaN if not run."""
    seeds = gate_campaigns.MOST
    shared = rng.standard_normal((proposals, seeds))
    baseline = shared + rng.standard_normal((proposals, seeds))
    proposal = (
        shared + rng.standard_normal((proposals, seeds)) + rng.choice([0, 1.5], proposals)[:, None]
    )
    count = rng.choice([1, 2, 3, 4, 6, 8, 12], proposals)
    baseline[np.arange(seeds) >= np.maximum(count, 8)[:, None]] = np.nan
    proposal[np.arange(seeds) >= count[:, None]] = np.nan
    return proposal, baseline


def as_runs(row):
    return {seed: score for seed, score in enumerate(row) if np.isfinite(score)}


def test_many_proposals_are_answered_as_the_gate_answers_one():
    rng = np.random.default_rng(0)
    proposal, baseline = campaign(rng, 60)
    before, before_baseline = campaign(rng, 60)
    everyone = np.arange(60)
    sums = Sums.none(60)
    for arm in (before, before_baseline):
        sums.add(everyone, arm)
    sums.add_pair(everyone, before, before_baseline)
    sd, correlation, dof = sums.model(everyone, proposal, baseline)
    level = 10 ** rng.uniform(-4, -1, 60)
    said = answers(
        proposal=proposal,
        baseline=baseline,
        sd=sd,
        correlation=correlation,
        dof=dof,
        test=KeepTest(level),
    )
    outcomes = set()
    for place in everyone:
        arms = [as_runs(one[place]) for one in (before, before_baseline, proposal, baseline)]
        model = seed_model(arms, [(arms[0], arms[1]), (arms[2], arms[3])])
        assert (model.sd, model.dof) == (pytest.approx(sd[place]), dof[place])
        assert model.correlation == pytest.approx(correlation[place])
        one = gate.answer(
            arms[2],
            arms[3],
            model=model,
            worthwhile=gate_campaigns.WORTHWHILE,
            level=level[place],
            most_seeds=gate_campaigns.MOST,
        )
        outcomes.add(one.outcome)
        assert (one.outcome == "keep", one.outcome == "more") == (
            said.keep[place],
            said.more[place],
        )
        if one.outcome == "more":
            assert one.next_seeds == said.next_seeds[place]
    assert outcomes == {"keep", "discard", "more"}


def test_levels_are_those_of_the_gate():
    levels = Levels("lord", 2)
    kept = [3, 7, 20]  # of the second campaign, from 1
    for number in range(40):
        expected = [
            lord_level([], number + 1, 0.1),
            lord_level([k for k in kept if k <= number], number + 1, 0.1),
        ]
        assert levels.at(number) == pytest.approx(expected)
        if number + 1 in kept:
            levels.keep(np.array([1]), number)


def test_a_resampled_seed_is_one_column_for_all_configurations():
    residuals = np.array([[1.0, -1.0, 0.0], [2.0, -2.0, 0.0]])
    world = World(50, Scenario(), np.random.default_rng(0), residuals)
    everyone = np.arange(50)
    wanted = np.ones((50, 4), dtype=bool)
    first = world.run(everyone, np.zeros(50), np.zeros(50, dtype=int), wanted)
    second = world.run(everyone, np.zeros(50), np.ones(50, dtype=int), wanted)
    assert np.array_equal(second, 2 * first)
    assert set(np.unique(first)) == {-1.0, 0.0, 1.0}
    assert world.runs.tolist() == [8.0] * 50


def test_a_lucky_baseline_scores_higher_and_costs_no_more():
    rows = np.zeros(400, dtype=int)
    plain, lucky = (
        World(400, Scenario(lucky=lucky), np.random.default_rng(0)) for lucky in (False, True)
    )
    ordinary = plain.first_runs(3, rows)
    chosen = lucky.first_runs(3, rows)
    assert chosen.mean() - ordinary.mean() > 0.4
    assert lucky.runs.tolist() == plain.runs.tolist()


def test_the_gate_keeps_fewer_false_gains_than_three_seeds_each():
    scenario = Scenario(gain=2.0)

    def measured(rule):
        return gate_campaigns.replay(rule, scenario, None, campaigns=30, seed=1)

    three, ours, checked = map(measured, (seeds_each(3, 0.0), gated(), gated(recheck=5)))
    assert ours.found > 0.9
    assert ours.false_fraction < 0.1 < three.false_fraction
    assert checked.found > 0.9


def test_a_baseline_run_again_keeps_no_trend_as_a_gain():
    scenario = Scenario(trend=0.02)
    old, again = (
        gate_campaigns.replay(gated(refresh=after), scenario, None, campaigns=30, seed=1)
        for after in (0, 10)
    )
    assert (old.false > 0).mean() > 0.5
    assert (again.false > 0).mean() < 0.3


def measured(scenario, rule="the gate"):
    return gate_campaigns.replay(gate_campaigns.RULES[rule], scenario, None, campaigns=30, seed=1)


def test_one_no_op_under_new_names_scores_as_before_on_the_same_seeds():
    world = World(20, Scenario(renamed=True), np.random.default_rng(0))
    everyone = np.arange(20)
    wanted = np.ones((20, 3), dtype=bool)
    baseline = world.configurations(everyone)
    world.begin(0)
    first, second = (
        world.run(everyone, np.zeros(20), world.configurations(everyone), wanted) for _ in range(2)
    )
    assert np.array_equal(first, second)
    assert not np.array_equal(first, world.run(everyone, np.zeros(20), baseline, wanted))


def test_a_campaign_that_stops_keeps_one_change_and_counts_no_later_runs():
    stopped = measured(Scenario(gain=2.0, proposals=30, stops=True))
    whole = measured(Scenario(gain=2.0, proposals=30))
    assert (stopped.good + stopped.false).max() == 1
    assert stopped.runs.mean() < whole.runs.mean()


def test_proposals_that_are_open_together_are_found_as_often():
    together = measured(Scenario(gain=2.0, proposals=24, open_at_once=8))
    alone = measured(Scenario(gain=2.0, proposals=24))
    assert together.found == pytest.approx(alone.found, abs=0.1)
    assert together.false_fraction < 0.1
