import pickle
from dataclasses import FrozenInstanceError

import pytest

from rewards.score import Score


def test_without_more_words_an_answer_was_read_and_has_no_parts():
    score = Score(1.0, True)
    assert (dict(score.breakdown), score.parsed) == ({}, True)


def test_scores_are_values():
    score = Score(0.5, False, {"format": 0.5}, parsed=False)
    assert pickle.loads(pickle.dumps(score)) == score == Score(0.5, False, {"format": 0.5}, False)
    with pytest.raises(FrozenInstanceError):
        score.reward = 1.0
