"""Binary reward: 1 if the last number in the completion equals the answer."""

import re
from decimal import Decimal
from typing import Any

from rewards.score import Score

MINIMUM = 0.0

_NUMBER = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?")


def score(text: str, answer: Any) -> Score:
    """Return 1 if the last number in the text equals the answer (a number or a numeric string),
    else 0.

    Numbers are compared by value. Expressions are not evaluated: the last number of ``2 + 3`` is 3.
    """
    numbers = _NUMBER.findall(text)
    right = bool(numbers) and Decimal(numbers[-1]) == Decimal(str(answer))
    return Score(float(right), right, {"last_number": float(right)}, parsed=bool(numbers))
