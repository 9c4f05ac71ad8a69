"""Failed runs oppose every claim, in both directions."""

import math

import numpy as np
import pytest

from dashboards.statistics.arms import compare_arms, compare_with_number
from dashboards.statistics.comparison import compare
from dashboards.statistics.failures import CLAIMS, ended, imputed_against

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


ONE_PART = {  # arms that share some seeds with the baseline, and of which a part failed
    "shared seeds": ({0: 0.1, 1: 0.2, 4: 0.15, 5: 0.16}, {0: LOST, 1: LOST, 2: 0.3, 3: 0.4}),
    "other seeds": (
        {0: 0.1, 1: 0.2, 2: 0.13, 10: 0.15, 11: 0.16},
        {0: 0.3, 1: 0.34, 2: 0.31, 20: LOST},
    ),
    "all but one shared seed": (
        {0: 0.1, 1: LOST, 2: 0.13, 10: 0.15, 11: 0.16},
        {0: 0.3, 1: 0.34, 2: LOST, 20: 0.35},
    ),
}


@pytest.mark.parametrize(
    ("failed", "gain"),
    [
        ("shared seeds", 0.35 - 0.1525),
        ("other seeds", (0.2 + 0.14 + 0.18) / 3),
        # one shared seed (weight 1/2), and three against two runs on other seeds (weight 6/5)
        ("all but one shared seed", (0.2 / 2 + (0.345 - 0.44 / 3) * 6 / 5) / (1 / 2 + 6 / 5)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_partly_paired_arm_is_compared_if_a_part_of_its_runs_failed(failed, gain):
    base, arm = ONE_PART[failed]
    (found,) = compare_arms({"base": base, "arm": arm}, "base").differences
    assert found.layout == "partly paired" and found.gain == pytest.approx(gain)
    # the failed runs have the worst score of all in the lower bound, and the best in the upper one
    low, high = found.interval
    assert low < 0 < gain < high


def _random_arm(generator):
    """Return up to six runs on some of eight seeds, a third of them failed."""
    seeds = generator.choice(8, size=generator.integers(1, 7), replace=False)
    scores = generator.choice([0.5, 0.6, 0.7], size=len(seeds))
    if generator.random() < 0.7:
        scores = generator.normal(size=len(seeds))
    failed = generator.random(len(seeds)) < 1 / 3
    runs = zip(seeds.tolist(), scores.tolist(), failed.tolist(), strict=True)
    return {seed: LOST if lost else score for seed, score, lost in runs}


def _reason_for_no_interval(scores, base, found):
    """Return why the noise of a difference cannot be estimated; None if it can."""
    runs = [scores[found.configuration], scores[base]]
    shared = runs[0].keys() & runs[1].keys()
    if found.layout == "paired" and len(shared) < 2:
        return "one shared seed"
    if found.layout != "paired" and min(map(len, runs)) < 2:
        return "one run"
    for claim in CLAIMS:
        filled = imputed_against(claim, scores, base)
        arm = filled[found.configuration]
        if found.layout == "paired":
            values = [arm[seed] - filled[base][seed] for seed in shared]
        else:
            values = [score - filled[base][seed] for seed, score in arm.items() if seed in shared]
        if np.ptp(values) < 1e-9:
            return "equal scores"
    return None


@pytest.mark.parametrize("pairing", ["auto", "paired", "unpaired"])
@pytest.mark.filterwarnings("error")
def test_any_pattern_of_failed_and_missing_runs_gives_finite_numbers(pairing):
    for seed in range(60):
        generator = np.random.default_rng(seed)
        scores = {f"a{arm}": _random_arm(generator) for arm in range(generator.integers(2, 5))}
        successful = ended(scores)
        if "a0" not in successful:
            continue
        differences = by_name(compare_arms(scores, "a0", pairing))
        for name in scores.keys() - {"a0"}:
            if name not in differences:
                # an arm with a single shared seed is left out if others share several
                shared = successful.get(name, {}).keys() & successful["a0"].keys()
                assert len(shared) < 2, (seed, name)
                continue
            found = differences[name]
            assert math.isfinite(found.gain) and math.isfinite(found.certain_gain), (seed, name)
            if found.interval is None:
                assert found.p is None and found.outcome == "undecided"
                assert _reason_for_no_interval(scores, "a0", found), (seed, name, found)
            else:
                assert all(map(math.isfinite, [*found.interval, found.p, found.p_worse]))
