import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dashboards import judge
from dashboards.headline import headline
from dashboards.statistics.arms import compare_arms
from dashboards.statistics.comparison import compare
from dashboards.statistics.layouts import layout_of
from dashboards.statistics.verdict import Tested, Undecided

ASKED = {"by": ["cfg"], "baseline": {"cfg": "base"}, "score": "acc", "seed": "seed", "fresh": True}


def frame(**arms):
    """Rows of arms, each a mapping of seed to score."""
    rows = [(arm, seed, score) for arm, row in arms.items() for seed, score in row.items()]
    return pd.DataFrame(rows, columns=["cfg", "seed", "acc"])


def test_seeds_are_blocks_if_half_of_them_are_shared():
    base = dict.fromkeys(range(10), 0.0)
    assert layout_of(base, dict.fromkeys(range(10), 0.0)) == "paired"
    assert layout_of(base, dict.fromkeys(range(3), 0.0)) == "paired"
    assert layout_of(base, dict.fromkeys(range(5, 15), 0.0)) == "partly paired"
    assert layout_of(base, dict.fromkeys(range(6, 16), 0.0)) == "unpaired"
    assert layout_of(base, {9: 0.0, 10: 0.0}) == "unpaired"  # one shared seed of two
    assert layout_of(base, {9: 0.0}) == "paired"
    assert layout_of(base, dict.fromkeys(range(10), 0.0), "unpaired") == "unpaired"


def test_complete_tables_give_the_numbers_of_a_sweep():
    generator = np.random.default_rng(0)
    scores = {name: dict(enumerate(generator.normal(size=4))) for name in ("a", "b", "c")}
    expected = compare(scores, "a")
    comparison = compare_arms(scores, "a")
    assert comparison == expected
    assert {each.layout for each in comparison.differences} == {"paired"}


def test_labels_give_welchs_test_and_both_directions_agree():
    generator = np.random.default_rng(0)
    adam = dict(zip(range(237), generator.normal(0.5, 0.1, 237), strict=True))
    sgd = dict(zip(range(230, 487), generator.normal(0.54, 0.1, 257), strict=True))
    up = judge(frame(base=adam, other=sgd), **ASKED)
    down = judge(frame(base=sgd, other=adam), **ASKED)
    assert up.arms[1].layout == down.arms[1].layout == "unpaired"
    difference = np.mean(list(sgd.values())) - np.mean(list(adam.values()))
    assert up.verdict.difference == pytest.approx(difference)
    assert down.verdict.difference == pytest.approx(-difference)
    assert up.verdict.interval == pytest.approx([-bound for bound in down.verdict.interval[::-1]])
    assert (up.arms[1].outcome, down.arms[1].outcome) == ("better", "worse")
    # above Welch's p: the smaller variance is raised, the smaller arm gives the degrees of freedom
    welch = stats.ttest_ind(
        list(sgd.values()), list(adam.values()), equal_var=False, alternative="greater"
    )
    assert welch.pvalue < up.verdict.p_value < 3 * welch.pvalue
    assert headline(up.results).confirmed and not headline(down.results).confirmed


def test_pilots_change_nobodys_noise_and_lack_seeds_instead_of_failing():
    generator = np.random.default_rng(0)
    rows = {
        name: dict(enumerate(0.5 + gain + generator.normal(0, 0.01, 5)))
        for name, gain in (("base", 0), ("x", 0.01))
    }
    alone = judge(frame(**rows), **ASKED)
    pilots = judge(frame(**rows, pilot={0: 0.1, 1: 0.12}, other={2: 0.2, 3: 0.17}), **ASKED)
    assert pilots.verdict.sd == pytest.approx(alone.verdict.sd)
    before, after = (result.arms[1] for result in (alone, pilots))
    assert after.difference == pytest.approx(before.difference)
    assert after.p_value == pytest.approx(
        min(1, 3 * before.p_value), rel=1e-3
    )  # three arms: Bonferroni
    assert {arm.name: (arm.missing, arm.failed) for arm in pilots.arms}["#2 cfg=pilot"] == (3, 0)
    assert any("#2 cfg=pilot (3)" in line for line in pilots.sentences)


def test_one_new_run_is_undecided_with_its_size_and_the_seeds_that_decide():
    losses = [2.1997, 2.2065, 2.2532, 2.2566, 2.2650, 2.2667]
    table = frame(base=dict(enumerate(losses)), new={0: 2.2155})
    judged = judge(table, mode="min", **ASKED)
    assert isinstance(judged.verdict, Undecided) and judged.verdict.why == "one seed"
    assert judged.verdict.difference == pytest.approx(0.0158)
    seeds = judged.verdict.deciding_seeds
    assert seeds is not None and any(f"{seeds} seeds" in line for line in judged.sentences)


def test_an_arm_with_three_of_ten_seeds_is_compared_on_these():
    effects = np.random.default_rng(0).normal(0, 0.3, 10)
    some = {0: 0.05, 1: 0.051, 2: 0.049}
    table = frame(
        base=dict(enumerate(effects)), x={seed: effects[seed] + y for seed, y in some.items()}
    )
    judged = judge(table, **ASKED).verdict
    assert isinstance(judged, Tested) and judged.claim == "evidence"
    assert (judged.difference, judged.seeds) == (pytest.approx(0.05), 3)
    assert judged.detectable < 0.05  # by the noise of differences, not by that of seeds


def test_seeds_that_are_clearly_correlated_are_used_alone():
    generator = np.random.default_rng(0)
    effects = generator.normal(0, 0.3, 15)
    base = dict(enumerate(effects[:10]))
    arm = {seed: effects[seed] + 0.05 + generator.normal(0, 0.003) for seed in range(5, 15)}
    (found,) = compare_arms({"base": base, "x": arm}, "base").differences
    assert found.layout == "paired"
    assert found.gain == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("direction", [1, -1])
def test_shared_seeds_may_be_exactly_correlated(direction):
    base = {0: 1.0, 1: 2.0, 2: 4.0, 3: 3.0}
    arm = {1: 2.0 * direction, 2: 4.0 * direction, 3: 3.0 * direction, 4: 2.0, 5: 1.0}
    (found,) = compare_arms({"base": base, "x": arm}, "base").differences
    assert found.layout == ("paired" if direction == 1 else "partly paired")


def test_partly_shared_seeds_use_all_runs():
    base = {0: 1.0, 1: 2.0, 2: 4.0, 3: 3.0}
    arm = {2: 5.0, 3: 3.0, 4: 2.0, 5: 1.0}
    (found,) = compare_arms({"base": base, "x": arm}, "base").differences
    assert found.layout == "partly paired"
    # two pairs differ by 0.5 on average, two runs without a partner by 1.5 - 1.5: weights 1 and 1
    assert found.gain == pytest.approx(0.25)


def test_two_seeds_confirm_nothing():
    table = frame(base={0: 0.5, 1: 0.51}, x={0: 0.7, 1: 0.7101})
    judged = judge(table, **ASKED)
    assert judged.verdict.claim == "too few seeds" and not headline(judged.results).confirmed
    assert judged.arms[1].outcome == "undecided"


def test_the_baseline_is_kept_only_if_a_worthwhile_gain_is_excluded():
    base = dict(enumerate([0.50, 0.52, 0.54, 0.52]))
    other = dict(enumerate([0.50, 0.515, 0.535, 0.525]))
    judged = judge(frame(base=base, x=other), worthwhile=0.05, **ASKED)
    assert not judged.verdict.improves and judged.verdict.excludes(0.05)
    assert "Keep the baseline" in judged.sentences[0] and "0.05" in judged.sentences[0]
    judged = judge(frame(base=base, x=other), worthwhile=0.001, **ASKED)
    assert "Undecided" in judged.sentences[0] and not judged.verdict.excludes(0.001)


def test_a_number_can_stand_for_the_baseline():
    losses = [3.27, 3.26, 3.275, 3.265]
    asked = {**ASKED, "baseline": {}}
    judged = judge(frame(a=dict(enumerate(losses))), mode="min", against=3.28, **asked)
    test = stats.ttest_1samp(losses, 3.28, alternative="less")
    assert judged.verdict.p_value == pytest.approx(test.pvalue * 5 / 3)  # level 0.05 * 3 / 5
    assert judged.verdict.difference == pytest.approx(-0.0125)
    assert "#0 beats 3.28" in judged.sentences[0] and "smaller is better" in judged.sentences[0]


def test_equal_runs_have_the_largest_noise_of_all_arms():
    arms = {"equal": dict.fromkeys(range(3), 0.9), "x": {0: 0.4, 1: 0.5, 2: 0.6}}
    arms["y"] = {0: 0.1, 1: 0.5, 2: 0.9}
    judged = judge(frame(**arms), against=0.5, **{**ASKED, "baseline": {}})
    row = next(row for row in judged.arms if row.name.endswith("equal"))
    half = (row.interval[1] - row.interval[0]) / 2
    assert half == pytest.approx(stats.t.isf(0.025 / 3, 2) * 0.4 / math.sqrt(3))


def test_arms_on_the_same_shared_seeds_share_their_noise():
    base = dict(enumerate([0.50, 0.52, 0.54, 0.52, 0.51]))
    quiet = {seed: base[seed] + 0.02 + 0.0001 * seed for seed in range(3)}
    noisy = {0: 0.6, 1: 0.4, 2: 0.5}
    alone = judge(frame(base=base, quiet=quiet), **ASKED)
    beside = judge(frame(base=base, quiet=quiet, noisy=noisy), **ASKED)
    widths = []
    for judged in (alone, beside):
        row = next(row for row in judged.arms if row.name.endswith("quiet"))
        assert row.layout == "paired" and row.missing == 2
        widths.append(row.interval[1] - row.interval[0])
    assert widths[1] > 2 * widths[0]


def test_quiet_arms_have_the_median_noise_against_a_number():
    arms = {
        "quiet": {0: 0.56, 1: 0.561, 2: 0.559},
        "x": {0: 0.4, 1: 0.5, 2: 0.6},
        "y": {0: 0.3, 1: 0.4, 2: 0.5},
    }
    for mode, number in (("max", 0.5), ("min", 0.6)):
        judged = judge(frame(**arms), mode=mode, against=number, **{**ASKED, "baseline": {}})
        row = next(row for row in judged.arms if row.name.endswith("quiet"))
        half = (row.interval[1] - row.interval[0]) / 2
        needed = stats.t.isf(0.025 / 3, 2)  # level 0.05 * 2 / 4, three arms
        assert half == pytest.approx(needed * 0.1 / math.sqrt(3)) and row.outcome == "undecided"


def test_arms_that_are_not_worse_by_a_margin_are_named():
    base = dict(enumerate([0.50, 0.52, 0.54, 0.52]))
    other = dict(enumerate([0.50, 0.515, 0.535, 0.525]))
    judged = judge(frame(base=base, x=other), not_worse_by=0.05, **ASKED)
    assert judged.arms[1].outcome == "not worse"
    assert judged.arms[1].interval[0] > -0.05
    strict = judge(frame(base=base, x=other), not_worse_by=0.001, **ASKED)
    assert strict.arms[1].outcome == "undecided"


def test_failed_and_missing_runs_are_counted_apart():
    base = dict(enumerate([0.50, 0.52, 0.54, 0.52]))
    arm = {0: 0.6, 1: 0.62, 2: math.nan}
    judged = judge(frame(base=base, x=arm), **ASKED)
    row = judged.arms[1]
    assert (row.runs, row.missing, row.failed) == (3, 1, 1)
    assert row.mean == pytest.approx(0.61)


def test_an_arm_without_successful_shared_seeds_is_not_compared_for_a_stated_reason():
    lost = math.nan
    rows = {
        "base": {0: lost, 1: lost, 2: 0.5, 3: 0.6, 4: 0.55},
        "other": {0: 0.5, 1: 0.53, 2: 0.51, 3: 0.63, 4: 0.56},
        "elsewhere": {0: 0.7, 1: 0.8, 2: lost, 3: lost, 4: lost},
    }
    judged = judge(frame(**rows), **ASKED)
    assert {arm.name: arm.outcome for arm in judged.arms}["#2 cfg=elsewhere"] == "not compared"
    assert any("Not compared: #2" in line for line in judged.sentences)
