import itertools

import numpy as np
import pytest
from scipy import stats

from research.evaluation_intervals import draw
from tests.refusals import refused
from trainer.evaluation.estimators import accuracy_interval, pass_at_k


@pytest.mark.parametrize("correct", [0, 1, 15, 30])
def test_single_completions_have_wilsons_interval(correct):
    published = stats.binomtest(correct, 30).proportion_ci(0.95, method="wilson")
    answers = np.arange(30) < correct
    assert accuracy_interval(answers, np.ones(30)) == pytest.approx((published.low, published.high))


@pytest.mark.parametrize(
    ("fractions", "right", "size"),
    [
        (np.repeat([0.25, 0.75], 3), 10, 20),  # 6 * 0.25 / (0.0625 * 6 / 5): as the spread shows
        (np.array([0.5, 0.5, 0.5, 0.5, 0.25]), 9, 20),  # no more than there are
        (np.repeat([0.0, 1.0], 4), 4, 8),  # and no less than one of each problem
    ],
)
def test_completions_of_one_problem_count_for_fewer(fractions, right, size):
    level = 2 * stats.norm.cdf(stats.t.ppf(0.975, len(fractions) - 1)) - 1
    published = stats.binomtest(right, size).proportion_ci(level, method="wilson")
    assert accuracy_interval(fractions, np.full(len(fractions), 4)) == pytest.approx(
        (published.low, published.high)
    )


def test_few_problems_near_zero_have_an_interval_that_holds():
    generator = np.random.default_rng(0)
    evaluations = [draw(generator, 30, 16, 0.06) / 16 for _ in range(1000)]
    intervals = [accuracy_interval(fractions, np.full(30, 16)) for fractions in evaluations]
    # a bootstrap over problems: 0.87
    assert np.mean([low <= 0.06 <= high for low, high in intervals]) > 0.9


@pytest.mark.parametrize(("correct", "completions"), [(0, 5), (1, 5), (3, 5), (5, 5)])
def test_pass_at_k_is_the_mean_over_all_subsets(correct, completions):
    outcomes = [index < correct for index in range(completions)]
    for k in range(1, completions + 1):
        subsets = list(itertools.combinations(outcomes, k))
        by_hand = sum(map(any, subsets)) / len(subsets)
        assert pass_at_k([correct], [completions], k) == pytest.approx([by_hand])


def test_pass_at_k_needs_k_completions():
    with refused("too-few-completions", ValueError, names=("pass@3",)):
        pass_at_k([1, 1], [2, 4], 3)
