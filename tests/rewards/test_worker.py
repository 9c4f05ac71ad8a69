"""What a scoring process refuses to send."""

import pytest

from rewards import combine_batch
from rewards.score import Score
from rewards.worker import as_json
from tests.refusals import refused


@pytest.mark.parametrize(
    ("weight", "breakdown"), [(1e20, {}), (1e308, {"a": 1.0}), (1e20, {"a": 1.0, "b": -1.0})]
)
def test_rewards_and_parts_that_a_weight_makes_too_large_are_refused(weight, breakdown):
    score = Score(weight * 20, True, {part: weight * value for part, value in breakdown.items()})
    with refused("reward-too-large", ValueError, names=("1e+15",)):
        as_json(score)


def test_a_usable_score_is_sent_as_it_is():
    [score] = combine_batch({"format": 2.0})(["<think></think><answer></answer>"], [None])
    assert as_json(score) == {
        "reward": 2.0,
        "correct": True,
        "breakdown": {"format": 2.0},
        "parsed": True,
    }
