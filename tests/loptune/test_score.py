import math

import pytest

from loptune.score import best_evaluation, final_metrics, score


def test_best_is_the_earliest_of_equals_final_the_mean_of_three():
    evaluations = [(0, 0.1), (10, 0.7), (20, 0.4), (30, 0.7), (40, 0.1)]
    assert best_evaluation(evaluations) == (10, 0.7)
    assert final_metrics(evaluations, window=3) == pytest.approx(
        {"final/best_accuracy": 0.7, "final/best_step": 10.0, "final/accuracy": 1.2 / 3}
    )
    assert best_evaluation([]) is None
    assert best_evaluation(evaluations, {20, 40}) == (20, 0.4)  # of those with a checkpoint
    assert final_metrics(evaluations, window=2)["final/accuracy"] == pytest.approx(0.4)
    assert final_metrics(evaluations[:1], window=3)["final/accuracy"] == 0.1


@pytest.mark.parametrize(("window", "expected"), [(1, 4.0), (2, 3.5), (3, 2.5), (9, 2.375)])
def test_a_score_is_the_mean_of_the_last_finite_evaluations(window, expected):
    history = {30: 3.0, 10: 2.0, 20: 0.5, 50: math.nan, 40: 4.0}
    assert score(history, window) == pytest.approx(expected)
    assert math.isnan(score({10: math.nan}, window))
