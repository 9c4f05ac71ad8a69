from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.dunnett import critical_value
from dashboards.statistics.guards import (
    NOISIER_LEVEL,
    POOLING_LEVELS,
    Variances,
    difference_noise,
    evaluation_alone,
)


def of(**values):
    """Three sweeps of 4 configurations on 3 seeds, everything of variance 1 but what is given."""
    equal = {
        "pooled": np.ones(3),
        "dof": 6,
        "own": np.full(3, 2.0),
        "base": np.ones(3),
        "base_dof": 2,
    }
    return Variances(**{**equal, "others": np.ones(3), "others_dof": 4, **values})


def judged(sd, dofs, dof):
    """The deviations as they are before they are scaled to a common number of degrees of freedom, 3
    comparisons.
    """
    return sd * critical_value(3, dof) / [critical_value(3, own_dof) for own_dof in dofs]


def test_the_larger_of_pooled_and_own_variance_counts():
    sd = difference_noise(of(own=np.array([1.0, 2.0, 5.0])), 3)
    assert sd == pytest.approx(np.sqrt([2.0, 2.0, 5.0]))


def test_own_variance_counts_half_from_five_seeds_on():
    own = np.array([1.0, 2.0, 5.0])
    quiet = {"base": np.zeros(3), "others": np.full(3, 0.1), "own_dof": 4}
    assert difference_noise(of(own=own, **quiet), 3) == pytest.approx(np.sqrt([1.5, 2.0, 3.5]))
    # nothing is pooled with one comparison
    alone = {"pooled": own / 2, "base": None, "others": None, "own_dof": 4}
    assert difference_noise(of(own=own, **alone), 1) == pytest.approx(np.sqrt(own))


def test_a_variance_below_that_of_unpaired_runs_is_averaged_with_it():
    sd = difference_noise(of(unpaired=np.array([1.0, 2.0, 5.0])), 3)
    assert sd == pytest.approx(np.sqrt([2.0, 2.0, 3.5]))


def test_a_baseline_that_is_found_noisier_has_welchs_degrees_of_freedom():
    # F(2, 4) exceeds 4.32 in one of ten: 4 passes, 9 does not.
    assert 4 < stats.f.isf(NOISIER_LEVEL, 2, 4) < 9
    sd = difference_noise(of(base=np.array([1.0, 4.0, 9.0])), 3)
    # (9 + 1)^2 / (9^2 / 2 + 1^2 / 4) = 2.45
    assert judged(sd, [6, 6, 2], 6) ** 2 == pytest.approx([2, 4 + 1, 9 + 1])


def test_two_seeds_allow_no_test_and_the_wider_interval_counts():
    variances = of(base=np.array([0.0, 1.0, 9.0]), base_dof=1, others_dof=2, dof=3)
    sd = difference_noise(variances, 3)
    # Welch's 100 / (81 / 1 + 1 / 2) = 1.2 and 4 / (1 + 1 / 2) = 2.7 degrees of freedom; the first
    # has 1 / (1 / 2). Of the first sum, 1, and of the second, 2, two degrees make a wider
    # interval than three of the pooled variance.
    assert judged(sd, [2, 2, 1], 3) ** 2 == pytest.approx([1, 2, 10])


def test_the_problems_tell_the_noise_where_seeds_show_no_more():
    evaluation_noise = {"evaluation": np.full(3, 2.0), "evaluation_dof": 198, "own_dof": 2}
    # The median of F(6, 198) is 0.89; a quarter of F(2, 198) lies above 1.40.
    assert stats.f.isf(POOLING_LEVELS[0], 6, 198) == pytest.approx(0.894, abs=1e-3)
    assert stats.f.isf(POOLING_LEVELS[1], 2, 198) == pytest.approx(1.396, abs=1e-3)
    quiet = (0.8, 2.0)
    loud = (1.0, 2.0)
    loud_best = (0.8, 3.0)
    pooled, own = (np.array(values) for values in zip(quiet, loud, loud_best, strict=True))
    variances = of(pooled=pooled, own=own, **evaluation_noise)
    assert evaluation_alone(variances).tolist() == [True, False, False]
    sd = difference_noise(variances, 3)
    assert judged(sd, [198, 6, 6], 6) ** 2 == pytest.approx([2.0, 2.0, 3.0])


def test_answers_that_never_differ_are_no_evaluation_without_noise():
    evaluation_noise = {"evaluation": np.zeros(3), "evaluation_dof": 198, "own_dof": 2}
    assert not evaluation_alone(of(own=np.array([0.0, 1.0, 2.0]), **evaluation_noise)).any()
    assert not evaluation_alone(of()).any()


@pytest.mark.parametrize("unit", [1.0, 100.0, 0.1, 1 / 3])
def test_whole_degrees_of_freedom_do_not_depend_on_the_last_digit(unit):
    # A baseline without noise beside others with two degrees of freedom has two by Welch: 1 / (1 /
    # 2).
    others = unit**2 * np.array([0.1, 0.7, 1.3])
    variances = of(
        base=np.zeros(3), base_dof=1, others=others, others_dof=2, dof=3, pooled=0.1 * others
    )
    variances = replace(variances, own=0.1 * others)
    assert judged(difference_noise(variances, 3), [2, 2, 2], 3) ** 2 == pytest.approx(others)
