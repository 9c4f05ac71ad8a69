"""Failed runs oppose every claim, in both directions."""

import math

import pytest

from dashboards.statistics.arms import compare_arms, compare_with_number
from dashboards.statistics.comparison import compare
from dashboards.statistics.failures import ended, imputed_against

LOST = math.nan
ROWS = {
    "base": {0: 1.0, 1: LOST, 2: 3.0},
    "a": {0: 2.0, 1: 4.0, 2: LOST},
    "broken": {0: LOST, 1: LOST, 2: LOST},
}


def by_name(comparison):
    return {each.configuration: each for each in comparison.differences}


def test_failed_runs_get_the_score_that_opposes_the_claim():
    assert imputed_against("better", ROWS, "base") == {
        "base": {0: 1.0, 1: 4.0, 2: 3.0},
        "a": {0: 2.0, 1: 4.0, 2: 1.0},
    }
    assert imputed_against("worse", ROWS, "base") == {
        "base": {0: 1.0, 1: 1.0, 2: 3.0},
        "a": {0: 2.0, 1: 4.0, 2: 4.0},
    }
    assert imputed_against("better", ROWS, None)["base"][1] == 1.0
    assert ended(ROWS) == {"base": {0: 1.0, 2: 3.0}, "a": {0: 2.0, 1: 4.0}}


def test_bounds_are_those_of_the_scores_that_oppose_each_claim():
    rows = {
        "base": {seed: 0.5 + 0.01 * seed for seed in range(5)},
        "a": {**{seed: 0.61 + 0.01 * seed**2 for seed in range(4)}, 4: LOST},
    }
    (found,) = compare(rows, "base").differences
    (lower,) = compare(imputed_against("better", rows, "base"), "base").differences
    (upper,) = compare(imputed_against("worse", rows, "base"), "base").differences
    assert found.interval == (
        min(lower.interval[0], upper.interval[0]),
        max(lower.interval[1], upper.interval[1]),
    )
    assert found.p == max(lower.p, upper.p)
    # On seeds 0 to 3: .11, .11, .13, .17. With the worst score of all, 0.5, seed 4 has -0.04.
    assert found.gain == pytest.approx(0.13) and found.seeds == 5
    assert found.certain_gain == pytest.approx((0.11 + 0.11 + 0.13 + 0.17 - 0.04) / 5)


def test_a_failed_baseline_makes_no_arm_worse():
    """``new`` is better than ``base`` on every seed on which both ended."""
    rows = {
        "base": {**dict.fromkeys(range(4), LOST), 4: 101.0, 5: 102.0, 6: 100.0, 7: 101.0},
        "new": {seed: 120.0 + seed % 4 for seed in range(8)},
        "big": {seed: 1000.0 + 5 * (seed % 5) for seed in range(8)},
    }
    comparison = compare_arms(rows, "base")
    found = by_name(comparison)
    assert found["new"].gain == pytest.approx(20.5)
    assert found["new"].interval[0] < 0 < found["new"].interval[1]
    mirrored = {name: {seed: -y for seed, y in row.items()} for name, row in rows.items()}
    other = by_name(compare_arms(mirrored, "base"))
    for name, estimate in found.items():
        low, high = estimate.interval
        assert other[name].interval == pytest.approx((-high, -low))
        assert other[name].p_worse == pytest.approx(estimate.p)


def test_an_arm_that_failed_everywhere_is_not_compared():
    for comparison in (compare(ROWS, "base"), compare_arms(ROWS, "base")):
        assert set(by_name(comparison)) == {"a"} and comparison.failed["broken"] == 3
    against = compare_with_number(ROWS, 0.4)
    assert set(by_name(against)) == {"base", "a"}


def test_the_trouble_of_one_arm_stays_its_own():
    """Eight seeds of three alike arms and one that is noisy, failed or short."""
    rows = {
        name: {seed: level + 0.01 * ((3 * seed + shift) % 8) for seed in range(8)}
        for name, level, shift in (("base", 0.5, 0), ("a", 0.53, 2), ("b", 0.5, 5))
    }
    alone = by_name(compare_arms(rows, "base"))
    noisy = {seed: 0.5 + 3.0 * (-1) ** seed for seed in range(8)}
    failed = {seed: LOST if seed == 3 else 0.1 for seed in range(8)}
    short = {seed: 0.5 + 0.01 * (seed % 3) for seed in range(6)}
    for extra in (noisy, failed, short):
        beside = by_name(compare_arms({**rows, "extra": extra}, "base"))
        for name in ("a", "b"):
            assert beside[name].gain == alone[name].gain
            # three comparisons in place of two, and the same noise
            low, high = alone[name].interval
            wider = beside[name].interval[1] - beside[name].interval[0]
            assert 1 < wider / (high - low) < 1.15
    of_noisy = by_name(compare_arms({**rows, "extra": noisy}, "base"))["extra"]
    assert of_noisy.interval[0] < -2 and of_noisy.interval[1] > 2
