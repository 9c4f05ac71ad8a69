"""The protocol of a scoring process, spoken by hand."""

import pytest

from rewards.score import Score
from rewards.worker import _as_json, _describe


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_no_number_is_refused(reward):
    with pytest.raises(ValueError, match=f"the reward is {reward}"):
        _as_json(Score(reward, False))


def test_scores_become_plain_json_values():
    assert _as_json(Score(2, True, {"format": 2}, parsed=False)) == {
        "reward": 2.0,
        "correct": True,
        "breakdown": {"format": 2.0},
        "parsed": False,
    }


@pytest.mark.parametrize("name", ["correct", "parsed"])
def test_a_verdict_that_is_not_a_boolean_is_refused(name):
    with pytest.raises(ValueError, match=f"Score.{name} is 'no', not True or False"):
        _as_json(Score(1.0, **{"correct": True, "parsed": True, name: "no"}))


def test_errors_are_described_in_short():
    assert _describe(ValueError("no such reward"), 5) == "no such reward"
    assert _describe(UnicodeError("odd"), 5) == "UnicodeError: odd"
    assert _describe(MemoryError(), 5) == "out of memory (limit 5 MiB)"
    assert _describe(TypeError("x" * 1000), 5) == "TypeError: " + "x" * 500
