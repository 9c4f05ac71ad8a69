import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.dunnett import critical_value, p_value


@pytest.mark.parametrize(
    ("comparisons", "freedom", "published"),
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
def test_critical_values_are_those_of_dunnetts_table(comparisons, freedom, published):
    """C. W. Dunnett, J. Am. Stat. Assoc. 50 (1955), table 1a: one-sided, 5%."""
    assert critical_value(comparisons, freedom) == pytest.approx(published, abs=0.02)


def test_corrected_p_values_are_those_of_scipy():
    control, *others = np.random.default_rng(5).standard_normal((4, 6))
    scipy_test = stats.dunnett(
        *others, control=control, alternative="greater", rng=np.random.default_rng(0)
    )
    for statistic, expected in zip(scipy_test.statistic, scipy_test.pvalue, strict=True):
        corrected = p_value(float(statistic), 3, 20, same_seeds=True)
        assert corrected == pytest.approx(expected, abs=0.002)


def test_scores_of_different_seeds_need_no_correlation():
    needed = critical_value(3, 10, same_seeds=False)
    assert needed == pytest.approx(stats.t.isf(0.05 / 3, 10))
    assert needed > critical_value(3, 10)
    assert p_value(needed, 3, 10, same_seeds=False) == pytest.approx(0.05)
