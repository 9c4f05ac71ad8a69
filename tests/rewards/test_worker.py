"""What a scoring process refuses to send."""

import pytest

from rewards.score import Score
from rewards.worker import _as_json


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": float("nan")}, "got nan"),
        ({"correct": "no"}, "Score.correct .*'no'"),
        ({"parsed": "no"}, "Score.parsed .*'no'"),
    ],
)
def test_what_is_no_score_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _as_json(Score(**{"reward": 1.0, "correct": True, "parsed": True, **changes}))
