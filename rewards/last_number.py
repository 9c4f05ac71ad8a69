"""Binary reward: 1 if the last number in the completion equals the answer."""

import re
from decimal import Decimal
from typing import Any

from rewards.errors import CodedValueError
from rewards.notation import plain_answer, plain_characters, without_grouping
from rewards.score import Score

MINIMUM = 0.0

# with or without commas between groups of three digits
_NUMBER = re.compile(
    r"-?[1-9]\d{0,2}(?:,\d{3}){1,9}(?!\d)(?:\.\d{1,30})?|-?\d{1,30}(?:\.\d{1,30})?|-?\.\d{1,30}"
)
_SCIENTIFIC = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?[eE][-+]?\d{1,3}")


def score(text: str, answer: Any) -> Score:
    """Return 1 if the last number in the text equals the answer (a number or a numeric string),
    else 0.

    Numbers are compared by value; ``1,234`` is 1234. Expressions are not evaluated: the last number
    of ``2 + 3`` is 3.

    Raises:
        ValueError: the answer is not a number.
    """
    accepted = number_of(answer)
    numbers = _NUMBER.findall(without_grouping(plain_characters(text)))
    right = bool(numbers) and _value(numbers[-1]) == accepted
    return Score(float(right), right, {"last_number": float(right)}, parsed=bool(numbers))


def number_of(answer: Any) -> Decimal:
    """Return an accepted answer as a number. Decoration that `plain_answer` removes, such as
    ``Answer:`` or a currency sign, is ignored.

    Raises:
        ValueError: the answer is not a number.
    """
    if isinstance(answer, str | int | float) and not isinstance(answer, bool):
        text = without_grouping(plain_answer(str(answer))).removeprefix("+")
        if _NUMBER.fullmatch(text) or _SCIENTIFIC.fullmatch(text):
            return _value(text)
    raise CodedValueError(
        f"the answer {answer!r} is not a number, but last_number compares numbers",
        code="invalid-answer",
    )


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))
