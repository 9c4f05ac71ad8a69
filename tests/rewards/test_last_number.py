import pytest

from rewards.last_number import score
from tests.refusals import refused
from tests.tables import table

HUGE = ("9" * 400, "14", 0.0, True)  # no trap


@pytest.mark.parametrize(
    ("text", "answer", "reward", "parsed"), [*table("last_number_scores"), HUGE]
)
def test_score(text, answer, reward, parsed):
    scored = score(text, answer)
    assert (scored.reward, scored.parsed) == (reward, parsed)


@pytest.mark.parametrize(
    ("text", "answer", "equal"),
    [
        ("The sum is 1,239.", "1239", True),
        ("The sum is 1,234.", "234", False),
        ("The sum is 1,234.", "1,234", True),
        ("1,234,567.50", 1234567.5, True),
        (r"1\,234", "1234", True),
        ("the numbers 1,2,3", "3", True),
        ("12,34", "34", True),
        ("\uff11\uff12", "12", True),
        ("12", "12.", True),
        ("12", "Answer: 12", True),
        ("12", "\u20ac12", True),
        ("12", "**12**", True),
        ("12", "<answer>12</answer>", True),
        ("12", "3 * 4 = 12\n#### 12", True),
        ("1000", "1e3", True),
    ],
)
def test_numbers_as_people_write_them(text, answer, equal):
    assert score(text, answer).correct is equal


@pytest.mark.parametrize("answer", ["twelve", "", [], {}, None, True, "12 or 13", "nan"])
def test_an_answer_that_is_no_number_is_said(answer):
    with refused("invalid-answer", ValueError, names=(repr(answer),)):
        score("12", answer)
