"""Equal scores give the same verdict whatever their decimal value is."""

import pytest

from dashboards.statistics.arms import Plan, compare_arms, compare_as_asked, compare_with_number
from dashboards.statistics.campaign_noise import seed_model
from dashboards.statistics.rounding import is_equal, variance
from dashboards.statistics.tournament import Tuning, compare_rules

DECIMALS = [0.5, 0.7, 0.1, 1 / 3, 1234.7]
NOISY = {0: 0.60, 1: 0.65, 2: 0.62}


def rows(value, seeds=range(3)):
    return dict.fromkeys(seeds, value)


@pytest.mark.parametrize("value", DECIMALS)
def test_the_variance_of_equal_scores_is_exactly_0(value):
    assert variance([value] * 3) == 0.0
    assert variance([value, value, value + 0.01]) > 0


def test_differences_are_equal_up_to_the_rounding_errors_of_their_scores():
    scores = ([0.4, 0.5, 0.6], [0.1, 0.2, 0.3])
    differences = [ours - theirs for ours, theirs in zip(*scores, strict=True)]
    assert len(set(differences)) > 1
    assert is_equal(differences, *scores)
    none = [0.1 + 0.2 - 0.3, 0.0, 0.0]
    assert not is_equal(none) and is_equal(none, [0.3])


@pytest.mark.parametrize("value", DECIMALS)
def test_equal_scores_get_the_largest_variance_against_a_number(value):
    found = compare_with_number({"a": rows(value), "b": NOISY}, value - 0.05)
    of_a, of_b = (each.interval[1] - each.interval[0] for each in found.differences)
    assert of_a == pytest.approx(of_b)
    assert found.noise.sd == pytest.approx(compare_with_number({"a": NOISY}, 0).noise.sd / 2**0.5)


@pytest.mark.parametrize("value", DECIMALS)
def test_equal_scores_alone_give_no_interval(value):
    (against,) = compare_with_number({"a": rows(value)}, value - 0.05).differences
    assert against.interval is None
    scores = {"base": rows(value), "a": rows(value + 0.1, range(10, 13))}
    (unpaired,) = compare_arms(scores, "base").differences
    assert unpaired.layout == "unpaired" and unpaired.interval is None
    tasks = {**dict.fromkeys(range(3), "one"), **dict.fromkeys(range(3, 6), "two")}
    both = {"base": rows(value, range(6)), "a": rows(value + 0.1, range(6))}
    (by_task,) = compare_as_asked(both, "base", Plan(tasks=tasks)).differences
    assert by_task.interval is None


def test_equal_scores_of_unpaired_arms_get_the_largest_variance():
    widths = []
    for value in (0.5, 0.7):
        scores = {"base": dict(zip(range(10, 13), NOISY.values(), strict=True))}
        scores |= {"a": rows(value), "b": {seed: score - 0.1 for seed, score in NOISY.items()}}
        difference = compare_arms(scores, "base", "unpaired").differences[0]
        widths.append(difference.interval[1] - difference.interval[0])
    assert widths[0] == pytest.approx(widths[1])


def test_rules_whose_differences_are_equal_up_to_rounding_are_not_compared():
    fresh = {"plain": {0: 0.1, 1: 0.2, 2: 0.3}, "AR": {0: 0.4, 1: 0.5, 2: 0.6}}
    tunings = dict.fromkeys(fresh, Tuning([*range(8)], 1))
    (result,) = compare_rules(fresh, "plain", tunings)
    assert result.refusal == "no spread"


@pytest.mark.parametrize("value", DECIMALS)
def test_a_campaign_of_equal_scores_has_no_noise(value):
    assert seed_model([rows(value), rows(value + 1)], [(rows(value), rows(value + 1))]).sd == 0.0
