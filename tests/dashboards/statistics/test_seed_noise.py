import math

import numpy as np
import pytest

from dashboards.statistics.seed_noise import Noise, baseline_noise, paired_differences, seed_noise

HAND = {
    "base": {0: 1.0, 1: 2.0, 2: 3.0},
    "a": {0: 2.0, 1: 3.0, 2: 5.0},
    "b": {0: 1.0, 1: 3.0, 2: 3.0},
}


def test_paired_differences_are_means_over_shared_seeds():
    differences = paired_differences(HAND, "base")
    assert differences["a"].by_seed == {0: 1, 1: 1, 2: 2}
    assert differences["a"].mean == pytest.approx(4 / 3)
    assert differences["b"].mean == pytest.approx(1 / 3)


def test_only_shared_seeds_with_finite_scores_are_paired():
    scores = {
        "base": {0: 1.0, 1: 2.0, 3: 2.0},
        "a": {1: 5.0, 2: 9.0, 0: math.nan, 3: math.inf},
        "c": {7: 1.0},
    }
    differences = paired_differences(scores, "base")
    assert list(differences) == ["a"]
    assert differences["a"].by_seed == {1: 3.0}


def test_what_rounding_leaves_is_no_difference():
    # 0.9 - 0.8 and 0.1 - 0.2 add up to -3e-17; the third seed is equal.
    scores = {"base": {0: 0.8, 1: 0.2, 2: 0.5}, "equal": {0: 0.9, 1: 0.1, 2: 0.5}}
    assert paired_differences(scores, "base")["equal"].mean == 0.0


def test_a_baseline_without_a_score_is_named():
    with pytest.raises(ValueError, match=r"\bbase\b"):
        paired_differences({"base": {0: math.nan}, "other": {0: 0.5}}, "base")


def test_deviation_is_what_configuration_and_seed_leave_over():
    # Residuals in ninths: 2 -1 -1, -1 -4 5, -1 5 -4; their squares sum to 90/81 over 4 degrees of
    # freedom.
    sd, dof = seed_noise(HAND)
    assert dof == 4
    assert sd == pytest.approx(math.sqrt(10 / 36))


def test_deviation_with_a_missing_score_is_that_of_least_squares():
    # Without b at seed 2 the 3 x 3 table fits least squares with 3 degrees of freedom left; the
    # filled-in value that leaves no residual there is the one of the additive model, so filling it
    # in must change nothing.
    incomplete = {**HAND, "b": {0: 1.0, 1: 3.0}}
    sd, dof = seed_noise(incomplete)
    assert dof == 3
    candidates = np.linspace(2, 5, 3001)
    smallest = min(
        seed_noise({**HAND, "b": {0: 1.0, 1: 3.0, 2: y}})[0] ** 2 * 4 for y in candidates
    )
    assert sd**2 * 3 == pytest.approx(smallest, abs=1e-6)
    sd, dof = seed_noise({"base": {0: 1.0}, "a": {0: 2.0}})
    assert math.isnan(sd) and dof == 0


def test_two_estimates_of_one_noise_are_pooled_by_their_freedom():
    # (2 * 9 + 6 * 1) / 8 = 3
    assert Noise(3.0, 2).pooled(Noise(1.0, 6)) == pytest.approx((math.sqrt(3), 8))
    assert (
        Noise(math.nan, 0).pooled(Noise(1.0, 6))
        == Noise(1.0, 6).pooled(Noise(math.nan, 0))
        == (1.0, 6)
    )


def test_the_noise_of_a_baseline_by_hand():
    # b - a is 1 0 2, so that residuals are 0, 1/2 and 1/2 each way: squares of 1 over 2 degrees of
    # freedom. The baseline deviates from the seeds' effects 1/2, 2 and 5 by 1/2, 3 and 1: a
    # variance of 7/4, of which two scores for every seed have put in half of 1/2.
    scores = {
        "base": {0: 1.0, 1: 5.0, 2: 6.0},
        "a": {2: 4.0, 0: 0.0, 1: 2.0},
        "b": {0: 1.0, 1: 2.0, 2: 6.0},
    }
    base, others = baseline_noise(scores, "base")
    assert base == pytest.approx((math.sqrt(7 / 4 - 1 / 4), 2))
    assert others == pytest.approx((math.sqrt(1 / 2), 2))
    # three scores for one of the seeds
    base, others = baseline_noise({**scores, "running": {1: 3.0}}, "base")
    assert base == pytest.approx((math.sqrt(7 / 4 - (1 / 2 + 1 / 3 + 1 / 2) / 3 / 2), 2))
    assert others == pytest.approx((math.sqrt(1 / 2), 2))
    assert [noise.dof for noise in baseline_noise({**scores, "base": {0: 1.0}}, "base")] == [0, 0]


def test_a_baseline_beside_one_other_has_no_noise_to_be_told_from_it():
    assert baseline_noise({"base": {0: 1.0, 1: 2.0}, "a": {0: 2.0, 1: 4.0}}, "base")[1].dof == 0
