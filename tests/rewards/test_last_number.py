import pytest

from rewards.last_number import score


@pytest.mark.parametrize(
    ("text", "answer", "reward", "parsed"),
    [
        ("14", "14", 1.0, True),
        ("7 + 7 = 14.", 14, 1.0, True),
        ("14.0", "14", 1.0, True),
        ("The answer is -3", "-3", 1.0, True),
        ("14, or 15", "14", 0.0, True),
        ("2 + 3", "5", 0.0, True),  # nothing is computed
        ("fourteen", "14", 0.0, False),
        ("", "0", 0.0, False),
        ("9" * 400, "14", 0.0, True),  # a huge number is no trap
    ],
)
def test_score(text, answer, reward, parsed):
    scored = score(text, answer)
    assert (scored.reward, scored.parsed) == (reward, parsed)
