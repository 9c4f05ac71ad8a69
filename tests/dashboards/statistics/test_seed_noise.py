import math

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.dunnett import largest_t, minimum_detectable_effect, seeds_for
from dashboards.statistics.seed_noise import (
    paired_differences,
    seed_deviation,
    verdict,
)

HAND = {
    "base": {0: 1.0, 1: 2.0, 2: 3.0},
    "a": {0: 2.0, 1: 3.0, 2: 5.0},
    "b": {0: 1.0, 1: 3.0, 2: 3.0},
}


def synthetic_sweep(generator, configurations, seeds, effect, noise):
    """Scores of a sweep with a common effect of the seed; one configuration is better by ``effect``."""
    scores = 0.7 + 0.02 * generator.standard_normal(seeds) + noise(generator, (configurations, seeds))
    scores[generator.integers(1, configurations)] += effect
    return {f"c{i}": dict(enumerate(row.tolist())) for i, row in enumerate(scores)}


def normal(generator, shape):
    return 0.01 * generator.standard_normal(shape)


def coarse(generator, shape):
    return generator.binomial(200, 0.7, shape) / 200 - 0.7


def one_noisier(generator, shape):
    values = normal(generator, shape)
    values[1] *= 3
    return values


def test_paired_differences_are_a_paired_t_test():
    found = paired_differences(HAND, "base")
    assert found["a"].by_seed == {0: 1, 1: 1, 2: 2}
    expected = stats.ttest_rel([2, 3, 5], [1, 2, 3]).confidence_interval(0.95)
    assert (found["a"].mean.low, found["a"].mean.high) == pytest.approx(tuple(expected))
    assert found["a"].mean.value == pytest.approx(4 / 3)
    assert found["b"].mean.value == pytest.approx(1 / 3)


def test_only_shared_seeds_with_finite_scores_are_paired():
    scores = {"base": {0: 1.0, 1: 2.0}, "a": {1: 5.0, 2: 9.0, 0: math.nan}, "c": {7: 1.0}}
    found = paired_differences(scores, "base")
    assert list(found) == ["a"]
    assert found["a"].by_seed == {1: 3.0}
    assert math.isnan(found["a"].mean.low)


def test_deviation_is_what_configuration_and_seed_leave_over():
    # Residuals in ninths: 2 -1 -1, -1 -4 5, -1 5 -4; their squares sum to 90/81 over 4 degrees of freedom.
    deviation, freedom = seed_deviation(HAND)
    assert freedom == 4
    assert deviation == pytest.approx(math.sqrt(10 / 36))


def test_deviation_with_a_missing_score_is_that_of_least_squares():
    # Without b at seed 2 the 3 x 3 table fits least squares with 3 degrees of freedom left; the filled-in value
    # that leaves no residual there is the one of the additive model, so filling it in must change nothing.
    incomplete = {**HAND, "b": {0: 1.0, 1: 3.0}}
    deviation, freedom = seed_deviation(incomplete)
    assert freedom == 3
    candidates = np.linspace(2, 5, 3001)
    smallest = min(seed_deviation({**HAND, "b": {0: 1.0, 1: 3.0, 2: y}})[0] ** 2 * 4 for y in candidates)
    assert deviation**2 * 3 == pytest.approx(smallest, abs=1e-6)


def test_no_deviation_from_one_seed():
    deviation, freedom = seed_deviation({"base": {0: 1.0}, "a": {0: 2.0}})
    assert math.isnan(deviation) and freedom == 0


@pytest.mark.parametrize(
    ("comparisons", "freedom", "published"),
    [(1, 10, 2.23), (2, 10, 2.57), (3, 10, 2.76), (5, 10, 2.99), (2, 20, 2.38), (3, 20, 2.54), (9, 10**6, 2.69)],
)
def test_critical_values_are_those_of_dunnetts_table(comparisons, freedom, published):
    """C. W. Dunnett, New tables for multiple comparisons with a control, Biometrics 20 (1964): two-sided, 5 %."""
    found = np.quantile(largest_t((frozenset([0]),) * comparisons, freedom), 0.95)
    assert found == pytest.approx(published, abs=0.02)


def test_corrected_p_values_are_those_of_scipy():
    generator = np.random.default_rng(5)
    control, *others = generator.standard_normal((4, 6))
    found = stats.dunnett(*others, control=control, rng=np.random.default_rng(0))
    draws = largest_t((frozenset(range(6)),) * 3, freedom=20)
    for statistic, p_value in zip(found.statistic, found.pvalue, strict=True):
        assert (draws >= abs(statistic)).mean() == pytest.approx(p_value, abs=0.01)


def test_sample_sizes_are_those_of_published_power_tables():
    # Paired t test, two-sided 5 %, power 0.8: 34 pairs for d_z = 0.5 and 15 for d_z = 0.8 (Cohen 1988, G*Power).
    assert seeds_for(0.5 * math.sqrt(2), 1.0) == 34
    assert seeds_for(0.8 * math.sqrt(2), 1.0) == 15
    assert seeds_for(0.0, 1.0) is None
    assert seeds_for(0.01, 1.0) is None


@pytest.mark.parametrize("seeds", [2, 3, 5, 20])
def test_detectable_effect_of_two_configurations_has_the_power_of_the_paired_t_test(seeds):
    effect = minimum_detectable_effect(0.3, seeds)
    shift = effect / (0.3 * math.sqrt(2 / seeds))
    critical = stats.t.ppf(0.975, seeds - 1)
    assert stats.nct.sf(critical, seeds - 1, shift) == pytest.approx(0.8, abs=0.01)


def test_detectable_effect_needs_two_seeds():
    with pytest.raises(ValueError, match="2 seeds"):
        minimum_detectable_effect(0.1, 1)


def test_verdict_by_hand():
    found = verdict(HAND, "base")
    assert (found.best, found.winner, found.comparisons, found.seeds) == ("a", "a", 2, 3)
    assert found.difference == pytest.approx(4 / 3)
    # The pooled variance of a difference, 2 * 10/36, exceeds the own one of (1, 1, 2), 1/3.
    error = math.sqrt(2 * 10 / 36 / 3)
    critical = 3.30  # where the bivariate t with correlation 1/2 and 4 degrees of freedom holds 95 %
    assert found.interval == pytest.approx((4 / 3 - critical * error, 4 / 3 + critical * error), abs=0.02)
    assert found.p_value == pytest.approx(0.066, abs=0.01)
    assert not found.evidence
    assert found.confirmation_seeds == seeds_for(4 / 3, math.sqrt(10 / 36))
    assert "No evidence" in found.reason and str(found.confirmation_seeds) in found.next_step


def test_smaller_scores_can_be_better():
    found = verdict({name: {s: -y for s, y in row.items()} for name, row in HAND.items()}, "base", mode="min")
    assert (found.best, found.winner) == ("a", "a")
    assert found.difference == pytest.approx(-4 / 3)


def test_nothing_above_the_baseline_is_no_evidence_for_anything():
    scores = {"base": {0: 9.0, 1: 9.2}, "a": {0: 1.0, 1: 1.1}, "b": {0: 2.0, 1: 2.3}}
    found = verdict(scores, "base")
    assert (found.winner, found.best, found.evidence, found.seeds_needed) == ("base", "b", False, None)
    assert found.finding.startswith("No configuration scored better than the baseline")
    assert "Keep the baseline" in found.next_step


def test_one_seed_is_never_evidence():
    found = verdict({"base": {0: 0.1}, "a": {0: 0.9}, "b": {0: 0.5}}, "base")
    assert not found.evidence
    assert (found.best, found.p_value, found.interval, found.minimum_detectable_effect) == ("a", None, None, None)
    assert "3 seeds" in found.next_step


def test_scores_that_do_not_vary_are_never_evidence():
    found = verdict({"base": {0: 0.5, 1: 0.5, 2: 0.5}, "a": {0: 0.6, 1: 0.6, 2: 0.6}}, "base")
    assert not found.evidence and found.deviation is None
    assert "coarse" in found.reason


def test_without_shared_seeds_or_other_configurations_there_is_no_evidence():
    apart = verdict({"base": {0: 0.1, 1: 0.1}, "a": {2: 0.9, 3: 0.9}}, "base")
    assert (apart.best, apart.seeds, apart.evidence) == ("a", 0, False)
    alone = verdict({"base": {0: 0.1}, "failed": {}}, "base")
    assert (alone.winner, alone.evidence) == ("base", False)
    assert alone.next_step == "Run the other configurations."


def test_a_baseline_without_scores_is_refused():
    with pytest.raises(ValueError, match="baseline base has no score"):
        verdict({"base": {0: math.nan}, "a": {0: 1.0}}, "base")


def test_a_lucky_single_seed_does_not_win_over_repeated_ones():
    found = verdict({**HAND, "lucky": {0: 100.0}}, "base")
    assert (found.best, found.comparisons) == ("a", 2)


@pytest.mark.parametrize("noise", [normal, coarse, one_noisier])
@pytest.mark.parametrize(("configurations", "seeds"), [(8, 3), (10, 2), (12, 5)])
def test_no_effect_gives_no_evidence(configurations, seeds, noise):
    generator = np.random.default_rng(11)
    sweeps = [synthetic_sweep(generator, configurations, seeds, 0.0, noise) for _ in range(100)]
    assert sum(verdict(sweep, "c0").evidence for sweep in sweeps) <= 5


@pytest.mark.parametrize(("configurations", "seeds", "effect"), [(8, 3, 0.05), (12, 3, 0.05), (10, 5, 0.035)])
def test_a_large_effect_is_found(configurations, seeds, effect):
    generator = np.random.default_rng(12)
    found = 0
    for _ in range(100):
        scores = synthetic_sweep(generator, configurations, seeds, effect, normal)
        truth = max(scores, key=lambda name: sum(scores[name].values()))
        result = verdict(scores, "c0")
        found += result.evidence and result.best == truth
    assert found >= 90


@pytest.mark.slow
@pytest.mark.parametrize(("configurations", "seeds"), [(8, 2), (8, 3), (12, 5)])
def test_the_detectable_effect_is_found_8_times_in_10(configurations, seeds):
    effect = minimum_detectable_effect(0.01, seeds, configurations)
    generator = np.random.default_rng(13)
    sweeps = [synthetic_sweep(generator, configurations, seeds, effect, normal) for _ in range(1000)]
    assert sum(verdict(sweep, "c0").evidence for sweep in sweeps) == pytest.approx(800, abs=40)
