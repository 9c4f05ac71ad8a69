import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.dunnett import critical_value, p_value, quantile


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
    shared = (frozenset(range(6)),) * 3
    for statistic, expected in zip(scipy_test.statistic, scipy_test.pvalue, strict=True):
        assert p_value(float(statistic), shared, 20) == pytest.approx(expected, abs=0.002)


def test_differences_are_as_correlated_as_their_seeds_overlap():
    # One seed of four is shared with the second, which is alone: 1 / (2 sqrt(4 * 1)); the third
    # shares none.
    shared = (frozenset([0, 1, 2, 3]), frozenset([0]), frozenset([4]))
    normal = np.random.default_rng(0).multivariate_normal(
        np.zeros(3), [[1, 0.25, 0], [0.25, 1, 0], [0, 0, 1]], 400_000
    )
    largest = normal.max(axis=1) / np.sqrt(np.random.default_rng(1).chisquare(10, 400_000) / 10)
    assert (largest > quantile(shared, 10)).mean() == pytest.approx(0.05, abs=0.0015)
