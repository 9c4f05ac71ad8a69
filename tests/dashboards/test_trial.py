import math

import pytest

from dashboards.trial import Curve, Objective, TrialRecord, best_first
from loptune.score import score


@pytest.mark.parametrize(
    ("history", "window", "expected"),
    [
        ({0: 9.0, 20: 1.0, 10: 5.0, 30: 2.0, 40: 3.0}, 3, 2.0),  # in any order
        ({0: 9.0}, 3, 9.0),
        ({10: 0.2, 20: math.nan, 30: 0.4}, 3, 0.3),  # a failed evaluation does not count
        ({10: 0.1, 20: 0.2, 30: math.nan, 40: 0.4}, 2, 0.3),
        ({0: 1e308, 10: 1.2e308}, 2, 1.1e308),  # their sum is too large for a float
    ],
)
def test_the_score_is_the_mean_of_the_last_finite_evaluations(history, window, expected):
    assert score(history, window) == pytest.approx(expected)
    steps = sorted(history)
    curve = Curve(tuple(steps), tuple(history[step] for step in steps))
    assert curve.score(window) == pytest.approx(expected)


@pytest.mark.parametrize("history", [{}, {10: math.nan, 20: math.inf}])
def test_without_a_finite_evaluation_there_is_no_score(history):
    assert math.isnan(score(history, 3))


def test_the_best_comes_first_and_equal_scores_keep_their_order():
    scores = {"a": 0.5, "b": 0.7, "c": 0.7, "d": 0.1}
    assert best_first(scores, Objective()) == ["b", "c", "a", "d"]
    assert best_first(scores, Objective(mode="min")) == ["d", "a", "b", "c"]
    assert best_first({}, Objective()) == []


def test_a_trial_has_ended_when_it_is_complete_stopped_early_or_failed():
    states = ("WAITING", "RUNNING", "KILLED", "COMPLETE", "PRUNED", "FAIL")
    ended = [state for state in states if TrialRecord("t", "0", "0", state).ended]
    assert ended == ["COMPLETE", "PRUNED", "FAIL"]
