import numpy as np
import pytest
from scipy import stats

from dashboards.statistics.dunnett import critical_value, largest_t, p_value, quantile


@pytest.mark.parametrize(
    ("comparisons", "freedom", "published"),
    [(1, 10, 1.81), (2, 10, 2.15), (3, 10, 2.34), (5, 10, 2.56), (2, 20, 2.03), (3, 20, 2.19), (9, 10**6, 2.42)],
)
def test_critical_values_are_those_of_dunnetts_table(comparisons, freedom, published):
    """C. W. Dunnett, J. Am. Stat. Assoc. 50 (1955), table 1a: one-sided, 5 %."""
    assert critical_value(comparisons, freedom) == pytest.approx(published, abs=0.02)


def test_corrected_p_values_are_those_of_scipy():
    generator = np.random.default_rng(5)
    control, *others = generator.standard_normal((4, 6))
    found = stats.dunnett(*others, control=control, alternative="greater", rng=np.random.default_rng(0))
    draws = largest_t((frozenset(range(6)),) * 3, freedom=20)
    for statistic, expected in zip(found.statistic, found.pvalue, strict=True):
        assert (draws >= statistic).mean() == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(("comparisons", "freedom"), [(1, 1), (1, 4), (3, 2), (9, 18), (39, 39)])
def test_quadrature_and_draws_agree(comparisons, freedom):
    drawn = np.quantile(largest_t((frozenset([0]),) * comparisons, freedom), 0.95)
    assert critical_value(comparisons, freedom) == pytest.approx(drawn, rel=0.03)
    if comparisons == 1:
        assert critical_value(1, freedom) == pytest.approx(stats.t.ppf(0.95, freedom), rel=1e-3)


def test_seeds_that_configurations_do_not_share_are_drawn():
    apart, alike = (frozenset([0, 1, 2]), frozenset([0, 1])), (frozenset([0, 1]),) * 2
    # Between independent differences (Bonferroni) and a single one.
    assert (
        critical_value(1, 10) < quantile(alike, 10) <= quantile(apart, 10) + 0.02 < stats.t.ppf(0.975, 10) + 0.02
    )
    assert p_value(quantile(alike, 10), alike, 10) == pytest.approx(0.05, abs=1e-6)
    assert p_value(quantile(apart, 10), apart, 10) == pytest.approx(0.05, abs=1e-3)
