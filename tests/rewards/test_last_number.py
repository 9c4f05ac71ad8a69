import pytest

from rewards.last_number import score
from tests.tables import table

HUGE = ("9" * 400, "14", 0.0, True)  # no trap


@pytest.mark.parametrize(
    ("text", "answer", "reward", "parsed"), [*table("last_number_scores"), HUGE]
)
def test_score(text, answer, reward, parsed):
    scored = score(text, answer)
    assert (scored.reward, scored.parsed) == (reward, parsed)
