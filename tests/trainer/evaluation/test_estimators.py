from math import comb

import numpy as np
import pytest
from scipy import stats

from benchmarks.evaluation_intervals import draw
from trainer.evaluation.estimators import accuracy_interval, pass_at_k


def test_pass_at_k_is_the_share_of_draws_with_a_correct_completion():
    # Of 4 completions 0, 1, 2 and 4 are correct; of the 6 pairs 0, 3, 5 and 6 hold a correct one.
    assert pass_at_k([0, 1, 2, 4], 4, 2) == pytest.approx([0, 3 / 6, 5 / 6, 1])
    assert pass_at_k([0, 1, 2, 4], 4, 1) == pytest.approx([0, 1 / 4, 2 / 4, 1])
    assert pass_at_k([0, 1, 2, 4], 4, 4) == pytest.approx([0, 1, 1, 1])
    assert pass_at_k([1, 1], [2, 4], 2) == pytest.approx([1, 3 / 6])


def test_pass_at_k_agrees_with_exact_binomials_where_floats_would_overflow():
    n, k = 2000, 700
    expected = [1 - comb(n - c, k) / comb(n, k) for c in (0, 1, 3, 1500)]
    assert pass_at_k([0, 1, 3, 1500], n, k) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("correct", "k"), [([1], 0), ([1], 5), ([5], 1), ([-1], 1)])
def test_impossible_counts_are_refused(correct, k):
    with pytest.raises(ValueError, match=r"completions"):
        pass_at_k(correct, 4, k)


@pytest.mark.parametrize("correct", [0, 1, 15, 30])
def test_single_completions_have_wilsons_interval(correct):
    published = stats.binomtest(correct, 30).proportion_ci(0.95, method="wilson")
    answers = np.arange(30) < correct
    assert accuracy_interval(answers, np.ones(30)) == pytest.approx((published.low, published.high))


@pytest.mark.parametrize(
    ("shares", "right", "size"),
    [
        (np.repeat([0.25, 0.75], 3), 10, 20),  # 6 * 0.25 / (0.0625 * 6 / 5): as the spread shows
        (np.array([0.5, 0.5, 0.5, 0.5, 0.25]), 9, 20),  # no more than there are
        (np.repeat([0.0, 1.0], 4), 4, 8),  # and no less than one of each problem
    ],
)
def test_completions_of_one_problem_count_for_fewer(shares, right, size):
    level = 2 * stats.norm.cdf(stats.t.ppf(0.975, len(shares) - 1)) - 1
    published = stats.binomtest(right, size).proportion_ci(level, method="wilson")
    assert accuracy_interval(shares, np.full(len(shares), 4)) == pytest.approx((published.low, published.high))


def test_few_problems_near_zero_have_an_interval_that_holds():
    generator = np.random.default_rng(0)
    found = [draw(generator, 30, 16, 0.06) / 16 for _ in range(1000)]
    intervals = [accuracy_interval(shares, np.full(30, 16)) for shares in found]
    assert np.mean([low <= 0.06 <= high for low, high in intervals]) > 0.9  # a bootstrap over problems: 0.87
