import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.dunnett import critical_value, p_value
from dashboards.statistics.levels import SIGNIFICANCE_LEVEL, level


@pytest.mark.parametrize(
    ("comparisons", "dof", "published"),
    [
        (1, 10, 1.81),
        (2, 10, 2.15),
        (3, 10, 2.34),
        (5, 10, 2.56),
        (2, 20, 2.03),
        (3, 20, 2.19),
        (9, 10**6, 2.42),
    ],
)
def test_critical_values_are_those_of_dunnetts_table(comparisons, dof, published):
    """C. W. Dunnett, J. Am. Stat. Assoc. 50 (1955), table 1a: one-sided, 5%."""
    needed = critical_value(comparisons, dof, probability=0.05)
    assert needed == pytest.approx(published, abs=0.02)


def test_corrected_p_values_are_those_of_scipy():
    control, *others = np.random.default_rng(5).standard_normal((4, 6))
    scipy_test = stats.dunnett(
        *others, control=control, alternative="greater", rng=np.random.default_rng(0)
    )
    for statistic, expected in zip(scipy_test.statistic, scipy_test.pvalue, strict=True):
        corrected = p_value(float(statistic), 3, 20, same_seeds=True)
        assert corrected * level(20) / SIGNIFICANCE_LEVEL == pytest.approx(expected, abs=0.002)


def test_scores_of_different_seeds_need_no_correlation():
    needed = critical_value(3, 10, same_seeds=False)
    assert needed == pytest.approx(stats.t.isf(0.05 * 10 / 12 / 3, 10))
    assert needed > critical_value(3, 10)
    assert p_value(needed, 3, 10, same_seeds=False) == pytest.approx(0.05)


def test_few_degrees_of_freedom_take_a_smaller_level():
    assert [level(dof) for dof in (2, 4, 18)] == pytest.approx([0.025, 0.05 * 2 / 3, 0.045])
    assert level(10**6) == pytest.approx(SIGNIFICANCE_LEVEL, rel=1e-5)
    # A t statistic at the critical value has p = 5%.
    assert p_value(critical_value(1, 2), 1, 2, same_seeds=True) == pytest.approx(0.05, rel=1e-4)
    assert critical_value(1, 2) == pytest.approx(stats.t.isf(0.025, 2), rel=1e-4)
