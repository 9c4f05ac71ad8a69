"""What a scoring process refuses to send."""

import pytest

from rewards.score import Score
from rewards.worker import as_json
from tests.refusals import refused


@pytest.mark.parametrize(
    ("changes", "code", "names"),
    [
        ({"reward": float("nan")}, "reward-not-finite", ["nan"]),
        ({"correct": "no"}, "not-a-bool", ["Score.correct", "'no'"]),
        ({"parsed": "no"}, "not-a-bool", ["Score.parsed", "'no'"]),
    ],
)
def test_what_is_no_score_is_refused(changes, code, names):
    with refused(code, ValueError, names=names):
        as_json(Score(**{"reward": 1.0, "correct": True, "parsed": True, **changes}))
