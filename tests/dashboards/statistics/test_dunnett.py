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
    assert critical_value(1, 10) < quantile(alike, 10) <= quantile(apart, 10) + 0.02 < stats.t.ppf(0.975, 10) + 0.02
    assert p_value(quantile(alike, 10), alike, 10) == pytest.approx(0.05, abs=1e-6)
    assert p_value(quantile(apart, 10), apart, 10) == pytest.approx(0.05, abs=1e-3)
    assert p_value(1e9, apart, 10) == pytest.approx(1 / 100_001)  # of 100,000 draws none is no proof of 0


def test_a_page_made_again_has_the_same_draws():
    shared = (frozenset([0, 1]), frozenset([1]))
    draws = largest_t(shared, 4)
    largest_t.cache_clear()
    assert np.array_equal(largest_t(shared, 4), draws)


def test_differences_are_as_correlated_as_their_seeds_overlap():
    # One seed of four is shared with the second, which is alone: 1 / (2 sqrt(4 * 1)); the third shares none.
    shared = (frozenset([0, 1, 2, 3]), frozenset([0]), frozenset([4]))
    correlation = [[1, 0.25, 0], [0.25, 1, 0], [0, 0, 1]]
    inside = stats.multivariate_t(np.zeros(3), correlation, df=10, seed=0).cdf(np.full(3, quantile(shared, 10)))
    assert inside == pytest.approx(0.95, abs=0.0015)
    unequal = stats.multivariate_t(np.zeros(3), np.eye(3) / 2 + 0.5, df=10, seed=0)
    assert unequal.cdf(np.full(3, quantile(shared, 10))) > 0.953  # had all the same seeds
