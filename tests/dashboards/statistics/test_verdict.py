import math

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics import dunnett
from dashboards.statistics.blocks import Known
from dashboards.statistics.comparison import compare
from dashboards.statistics.power import seeds_for
from dashboards.statistics.verdict import Undecided, collapse_bound, verdict
from tests.tables import table

HAND = {
    "base": {0: 1.0, 1: 2.0, 2: 3.0},
    "a": {0: 2.0, 1: 3.0, 2: 5.0},
    "b": {0: 1.0, 1: 3.0, 2: 3.0},
}


def test_verdict_by_hand():
    judged = verdict(HAND, "base")
    assert (judged.best, judged.winner, judged.comparisons, judged.seeds) == ("a", "a", 2, 3)
    assert judged.difference == pytest.approx(4 / 3)
    # The pooled variance of a difference, 2 * 10/36, exceeds the own one of (1, 1, 2), 1/3.
    # Unpaired runs have 1 + 7/3. Seeds are not clearly blocks: F(2, 4) of 14.8 has p = 0.014.
    error = math.sqrt((2 * 10 / 36 + 1 + 7 / 3) / 2 / 3)
    critical = 3.017
    # There the bivariate t with correlation 1/2 and 4 degrees of freedom holds 1 - 0.05 * 4 / 6.
    assert stats.multivariate_t([0, 0], [[1, 0.5], [0.5, 1]], df=4).cdf(
        [critical] * 2
    ) == pytest.approx(1 - 0.05 * 4 / 6, abs=1e-3)
    assert judged.interval == pytest.approx(
        (4 / 3 - critical * error, 4 / 3 + critical * error), abs=0.005
    )
    assert judged.p_value == pytest.approx(0.215, abs=0.005)
    assert judged.claim == "none"
    # Two differences are shrunk towards zero: 4/3 (1 - 2 (10/36) / 3 / (16/9)).
    assert judged.shrunken == pytest.approx(4 / 3 * (1 - 20 / 108 * 9 / 16))
    assert judged.confirmation_seeds == seeds_for(judged.shrunken, math.sqrt(10 / 36), known_dof=2)


def test_seeds_that_steered_a_search_name_a_candidate_and_no_more():
    larger = {**HAND, "a": {0: 5.0, 1: 6.0, 2: 8.0}}
    judged = verdict(larger, "base", adaptive=True)
    assert (judged.claim, judged.winner) == ("candidate", "a")


def test_a_single_finalist_by_hand_with_the_searchs_seeds_in_its_noise():
    rows = {name: HAND[name] for name in ("base", "a")}
    # Runs have the variances 1 and 7/3, on two degrees of freedom each (Welch, Satterthwaite).
    alone = welch_by_hand(1.0, 7 / 3, 2)
    assert verdict(rows, "base").p_value == pytest.approx(alone)
    assert verdict(rows, "base").dof == 3
    earlier = {"base": {7: 0.0, 8: 0.0, 9: 0.0}, "a": {7: 5.0, 8: 6.0, 9: 7.0}}
    judged = verdict(rows, "base", earlier=earlier)
    # The search's seeds have the variances 0 and 1.
    assert judged.p_value == pytest.approx(welch_by_hand(1 / 2, 5 / 3, 4))
    assert judged.difference == pytest.approx(4 / 3)  # the search's scores tell of the noise alone
    lost = {**earlier, "base": {7: 0.0, 8: 0.0, 9: math.nan}}
    assert verdict(rows, "base", earlier=lost).p_value == pytest.approx(alone)


def test_failed_seeds_add_no_degrees_of_freedom():
    rows = {"base": HAND["base"], "a": {0: 4.0, 1: 5.0, 2: 7.0}}
    failed = dict.fromkeys(range(20, 48), math.nan)
    # The test uses no earlier scores of a configuration with a failed seed.
    few = {"base": {7: 0.0, 8: 1.0}, "a": {7: 5.0, 8: 6.5}}
    padded = {name: {**row, **failed} for name, row in few.items()}
    alone = verdict(rows, "base", earlier={})
    judged = verdict(rows, "base", earlier=padded)
    assert judged.detectable == alone.detectable
    assert judged.confirmation_seeds == alone.confirmation_seeds
    assert judged.confirmation_seeds is not None
    # Scores without earlier ones become the earlier scores of the confirmation.
    judged = verdict({**rows, "base": {**rows["base"], 3: math.nan}}, "base")
    assert judged.confirmation_seeds == seeds_for(judged.shrunken, judged.sd, known_dof=0)
    assert judged.confirmation_seeds != seeds_for(judged.shrunken, judged.sd, known_dof=3)


def welch_by_hand(base, arm, dof):
    """The p value of a gain of 4/3 on three seeds, at 0.05 f / (f + 2)."""
    welch = (base + arm) ** 2 / ((base**2 + arm**2) / dof)
    t = 4 / 3 / math.sqrt((base + arm) / 3)
    return (welch + 2) / welch * stats.t.sf(t, welch)


def test_a_single_finalist_on_blocks_has_the_paired_test():
    rows = {name: HAND[name] for name in ("base", "a")}
    comparison = compare(rows, "base", known=Known(blocks=True))
    # differences of 1, 1, 2; two degrees of freedom take half the level
    paired = stats.ttest_1samp([1.0, 1.0, 2.0], 0, alternative="greater").pvalue
    assert comparison.blocks and comparison.differences[0].p == pytest.approx(2 * paired)


def test_a_shown_gain_is_named_before_a_larger_one_within_its_noise():
    rows = {
        "base": [0.0, 0.01, 0.02, 0.0],
        "sure": [1.0, 1.01, 1.02, 1.01],
        "wild": [-9.0, 11.0, -5.0, 9.0],
    }
    judged = verdict({name: dict(enumerate(values)) for name, values in rows.items()}, "base")
    assert judged.best == ("sure" if judged.claim == "evidence" else "wild")


def test_what_few_seeds_hide():
    collapsed = {"base": [0.5, 0.52, 0.51, 0.1], "a": [0.51, 0.52, 0.51, 0.52]}
    judged = verdict({name: dict(enumerate(values)) for name, values in collapsed.items()}, "base")
    assert judged.difference == pytest.approx(0.1075) and judged.median == pytest.approx(0.005)
    assert judged.driven_by_few_seeds
    assert collapse_bound(4) == pytest.approx(1 - 0.05**0.25)
    assert collapse_bound(8) == pytest.approx(0.312, abs=1e-3)


def test_the_best_of_many_is_shrunk_by_its_fraction_of_noise():
    differences = {f"c{i}": {0: y - 0.1, 1: y + 0.1} for i, y in enumerate([1.0, 2.0, 3.0])}
    scores = {"base": {0: 0.0, 1: 0.0}, **differences}
    judged = verdict(scores, "base")
    # The differences vary by 1, of which half of the squared deviation is noise; their mean is 2.
    noise = judged.sd**2 / 2
    assert judged.shrunken == pytest.approx(2 + (1 - noise) * 1)


def test_nothing_above_the_baseline_is_no_evidence_for_anything():
    scores = {"base": {0: 9.0, 1: 9.2}, "a": {0: 1.0, 1: 1.1}, "b": {0: 2.0, 1: 2.3}}
    judged = verdict(scores, "base")
    assert (judged.winner, judged.best, judged.claim) == ("base", "b", "none")
    assert judged.confirmation_seeds is None


@pytest.mark.parametrize(("scores", "best", "seeds", "why"), table("undecided_seeds"))
def test_seeds_that_cannot_tell_say_why(scores, best, seeds, why):
    judged = verdict(scores, "base")
    assert isinstance(judged, Undecided)
    assert (judged.best, judged.seeds, judged.why) == (best, seeds, why)


def test_a_lucky_single_seed_does_not_win_over_repeated_ones():
    judged = verdict({**HAND, "lucky": {0: 100.0}}, "base")
    assert (judged.best, judged.comparisons) == ("a", 2)


def test_problems_narrow_the_interval_where_seeds_differ_by_nothing_else():
    # 4 configurations answer 200 problems on 2 seeds; nothing but the answers is random.
    generator = np.random.default_rng(3)
    answers = {
        f"c{i}": {
            seed: generator.binomial(1, 0.5 + 0.1 * (i == 1), 200).astype(float)
            for seed in range(2)
        }
        for i in range(4)
    }
    scores = {
        name: {seed: row.mean() for seed, row in by_seed.items()}
        for name, by_seed in answers.items()
    }
    unpaired = verdict(scores, "c0")
    paired = verdict(scores, "c0", answers=answers)
    assert (unpaired.by_problem, paired.by_problem) == (False, True)
    differences = [answers[paired.best][seed] - answers["c0"][seed] for seed in range(2)]
    # The rest beside seed and problem has half of the squared difference between the seeds'
    # differences.
    rest = np.var(differences[0] - differences[1], ddof=1) / 2
    half = dunnett.critical_value(3, 199) * math.sqrt(rest / 200 / 2)
    assert paired.interval == pytest.approx((paired.difference - half, paired.difference + half))
    assert paired.interval[1] - paired.interval[0] < unpaired.interval[1] - unpaired.interval[0]
    assert paired.sd == unpaired.sd  # what is promised of other seeds does not change
