import math

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics import dunnett
from dashboards.statistics.power import seeds_for
from dashboards.statistics.seed_noise import Noise
from dashboards.statistics.verdict import failed_share, survival_luck, verdict

HAND = {"base": {0: 1.0, 1: 2.0, 2: 3.0}, "a": {0: 2.0, 1: 3.0, 2: 5.0}, "b": {0: 1.0, 1: 3.0, 2: 3.0}}


def test_verdict_by_hand():
    found = verdict(HAND, "base")
    assert (found.best, found.winner, found.comparisons, found.seeds) == ("a", "a", 2, 3)
    assert found.difference == pytest.approx(4 / 3)
    # The pooled variance of a difference, 2 * 10/36, exceeds the own one of (1, 1, 2), 1/3.
    error = math.sqrt(2 * 10 / 36 / 3)
    critical = 2.610
    # There the bivariate t with correlation 1/2 and 4 degrees of freedom holds 95 %.
    assert stats.multivariate_t([0, 0], [[1, 0.5], [0.5, 1]], df=4).cdf([critical] * 2) == pytest.approx(
        0.95, abs=1e-3
    )
    assert found.interval == pytest.approx((4 / 3 - critical * error, 4 / 3 + critical * error), abs=0.005)
    assert found.p_value == pytest.approx(0.033, abs=0.005)
    assert found.evidence and found.candidate
    # Two differences are shrunk towards zero: 4/3 (1 - 2 (10/36) / 3 / (16/9)).
    assert found.shrunken == pytest.approx(4 / 3 * (1 - 20 / 108 * 9 / 16))
    assert found.confirmation_seeds == seeds_for(found.shrunken, math.sqrt(10 / 36), known_freedom=2)


def test_smaller_scores_can_be_better():
    found = verdict({name: {s: -y for s, y in row.items()} for name, row in HAND.items()}, "base", mode="min")
    assert (found.best, found.winner) == ("a", "a")
    assert found.difference == pytest.approx(-4 / 3)


def test_seeds_that_steered_a_search_name_a_candidate_and_no_more():
    found = verdict(HAND, "base", adaptive=True)
    assert (found.evidence, found.candidate, found.winner) == (False, True, "a")
    assert "candidates" in found.next_step and "followed these seeds" in found.reason


def test_a_configuration_that_lost_a_seed_makes_no_claim_and_lends_no_noise():
    broken = {**HAND, "lucky": {0: 50.0, 1: 70.0, 2: math.nan}}
    found, without = verdict(broken, "base"), verdict(HAND, "base")
    assert found.silent == ("lucky",)
    assert (found.best, found.deviation) == (without.best, without.deviation)
    alone = verdict({"base": HAND["base"], "lucky": broken["lucky"]}, "base")
    assert not alone.evidence and "luckier seeds" in alone.reason


def test_what_surviving_can_have_given_is_taken_off_the_gain():
    broken = {**HAND, "unlucky": {0: 1.0, 1: 2.0, 2: math.nan}, "broken": {0: math.nan, 1: math.nan, 2: math.nan}}
    found, without = verdict(broken, "base"), verdict(HAND, "base")
    # One of nine failed, without the configuration that failed on every seed: of normal deviates above -1.2206 the
    # mean is phi(1.2206) / (8/9) = 0.2131 and the variance 1 - 1.2206 * 0.2131 - 0.2131^2 = 0.6945.
    assert survival_luck(failed_share(broken, "base")) == pytest.approx(0.2131 / math.sqrt(0.6945), abs=2e-4)
    assert failed_share(broken, "base") == pytest.approx(1 / 9)
    assert found.luck == pytest.approx(survival_luck(1 / 9) * found.deviation)
    assert found.interval == pytest.approx((without.interval[0] - found.luck, without.interval[1]))
    assert found.p_value > without.p_value and (without.luck, survival_luck(0.0)) == (0, 0)
    smaller = {name: {seed: -y for seed, y in row.items()} for name, row in broken.items()}
    mirrored = verdict(smaller, "base", mode="min")
    assert mirrored.interval == pytest.approx((-found.interval[1], -found.interval[0]))
    assert mirrored.p_value == pytest.approx(found.p_value)


def test_where_more_than_a_quarter_fails_nothing_is_evidence():
    clear = {name: {seed: y + 20 * (name == "a") for seed, y in row.items()} for name, row in HAND.items()}
    some = {**clear, "c": {0: 1.0, 1: 2.0, 2: math.nan}}  # one of nine
    many = {**some, "d": {0: 1.0, 1: math.nan, 2: math.nan}, "e": {0: 2.0, 1: math.nan, 2: math.nan}}  # five of 15
    assert verdict(some, "base").evidence
    found = verdict(many, "base")
    assert (found.evidence, found.candidate, found.failing) == (False, False, True)
    assert found.interval is None and found.p_value is None and "More than 25%" in found.reason
    assert found.next_step == "Find out why trials fail, then run it on fresh seeds."


def test_on_fresh_seeds_each_configuration_is_judged_by_its_own_differences():
    found = verdict(HAND, "base", own={"a": Noise(1.0, 4)})
    # Differences of 1, 1 and 2 have the variance 1/3: with 4 degrees of freedom of 1, (2 / 3 + 4) / 6 = 7/9.
    error = math.sqrt(7 / 9 / 3)
    assert (found.deviation, found.freedom) == (pytest.approx(math.sqrt(7 / 18)), 6)
    assert found.p_value == pytest.approx(2 * stats.t.sf(4 / 3 / error, 6))  # Bonferroni's, for a and b
    half = stats.t.isf(0.025, 6) * error
    assert found.interval == pytest.approx((4 / 3 - half, 4 / 3 + half))
    alone = verdict({name: HAND[name] for name in ("base", "a")}, "base", own={})
    test = stats.ttest_rel([2, 3, 5], [1, 2, 3], alternative="greater")
    assert alone.p_value == pytest.approx(test.pvalue)
    assert verdict({"base": {0: 1.0}, "a": {0: 9.0}}, "base", own={"a": Noise(0.1, 9)}).p_value is None


def test_noise_that_is_not_alike_is_told():
    assert verdict(HAND, "base").unlike == ""
    generator = np.random.default_rng(0)
    scores = generator.standard_normal((6, 5))
    for place, sign in ((0, "the baseline is noisier"), (1, "the best configuration is noisier")):
        noisy = scores.copy()
        noisy[place] *= 8
        noisy[1] += 0.5 - noisy[1].mean() + scores[2:].mean(axis=1).max()
        rows = {f"c{i}": dict(enumerate(row)) for i, row in enumerate(noisy.tolist())}
        assert sign in verdict(rows, "c0").unlike
    collapsed = scores.copy()
    collapsed[3, 0] -= 20
    rows = {f"c{i}": dict(enumerate(row)) for i, row in enumerate(collapsed.tolist())}
    assert "some seeds lie far from the rest" in verdict(rows, "c0").unlike


def test_the_best_of_many_is_shrunk_by_the_share_of_noise_in_what_sets_them_apart():
    differences = {f"c{i}": {0: y - 0.1, 1: y + 0.1} for i, y in enumerate([1.0, 2.0, 3.0])}
    scores = {"base": {0: 0.0, 1: 0.0}, **differences}
    found = verdict(scores, "base")
    # The differences vary by 1, of which half of the squared deviation is noise; their mean is 2.
    noise = found.deviation**2 / 2
    assert found.shrunken == pytest.approx(2 + (1 - noise) * 1)


def test_nothing_above_the_baseline_is_no_evidence_for_anything():
    scores = {"base": {0: 9.0, 1: 9.2}, "a": {0: 1.0, 1: 1.1}, "b": {0: 2.0, 1: 2.3}}
    found = verdict(scores, "base")
    assert (found.winner, found.best, found.evidence, found.seeds_needed) == ("base", "b", False, None)
    assert found.finding.startswith("No configuration scored better than the baseline")
    assert "Keep the baseline" in found.next_step


def test_where_fresh_seeds_could_tell_their_number_is_advised():
    near = {"base": {0: 0.50, 1: 0.54, 2: 0.52, 3: 0.49}, "ar": {0: 0.54, 1: 0.53, 2: 0.56, 3: 0.52}}
    found = verdict(near, "base")
    assert not found.evidence and found.confirmation_seeds is not None
    assert f"Run ar and base alone on {found.confirmation_seeds} fresh seeds" in found.next_step


def test_one_seed_is_never_evidence():
    found = verdict({"base": {0: 0.1}, "a": {0: 0.9}, "b": {0: 0.5}}, "base")
    assert not found.evidence
    assert (found.best, found.p_value, found.interval, found.minimum_detectable_effect) == ("a", None, None, None)
    assert "3 seeds" in found.next_step


def test_scores_that_do_not_vary_are_never_evidence():
    found = verdict({"base": {0: 0.5, 1: 0.5, 2: 0.5}, "a": {0: 0.6, 1: 0.6, 2: 0.6}}, "base")
    assert not found.evidence and found.deviation is None
    assert "coarse" in found.reason
    alike = verdict({name: {0: 0.5, 1: 0.5} for name in ("base", "a", "b")}, "base")
    assert (alike.evidence, alike.best, alike.difference) == (False, "a", 0.0)


def test_without_shared_seeds_or_other_configurations_there_is_no_evidence():
    apart = verdict({"base": {0: 0.1, 1: 0.1}, "a": {2: 0.9, 3: 0.9}}, "base")
    assert (apart.best, apart.seeds, apart.evidence) == ("a", 0, False)
    alone = verdict({"base": {0: 0.1}, "failed": {}}, "base")
    assert (alone.winner, alone.evidence) == ("base", False)
    assert alone.next_step == "Run the other configurations."


def test_a_baseline_without_scores_is_refused():
    with pytest.raises(ValueError, match="baseline base has no score"):
        verdict({"base": {0: math.nan}, "a": {0: 1.0}}, "base")


def test_a_baseline_that_lost_a_seed_is_compared_on_the_others():
    found = verdict({**HAND, "base": {0: 1.0, 1: 2.0, 2: math.nan}}, "base")
    assert (found.best, found.silent, found.seeds, found.difference) == ("a", (), 2, 1.0)


def test_a_lucky_single_seed_does_not_win_over_repeated_ones():
    found = verdict({**HAND, "lucky": {0: 100.0}}, "base")
    assert (found.best, found.comparisons) == ("a", 2)


def test_problems_narrow_the_interval_where_seeds_differ_by_nothing_else():
    # 4 configurations answer 200 problems on 2 seeds; nothing but the answers is random.
    generator = np.random.default_rng(3)
    answers = {
        f"c{i}": {seed: generator.binomial(1, 0.5 + 0.1 * (i == 1), 200).astype(float) for seed in range(2)}
        for i in range(4)
    }
    scores = {name: {seed: row.mean() for seed, row in own.items()} for name, own in answers.items()}
    plain, paired = verdict(scores, "c0"), verdict(scores, "c0", answers=answers)
    assert (plain.by_problem, paired.by_problem) == (False, True)
    differences = [answers[paired.best][seed] - answers["c0"][seed] for seed in range(2)]
    # The rest beside seed and problem has half of the squared difference between the seeds' differences.
    rest = np.var(differences[0] - differences[1], ddof=1) / 2
    half = dunnett.critical_value(3, 199) * math.sqrt(rest / 200 / 2)
    assert paired.interval == pytest.approx((paired.difference - half, paired.difference + half))
    assert paired.interval[1] - paired.interval[0] < plain.interval[1] - plain.interval[0]
    assert paired.deviation == plain.deviation  # what is promised of other seeds does not change
