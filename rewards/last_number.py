"""Whether the last number that a completion names is the answer."""

import re
from decimal import Decimal
from typing import Any

from rewards.score import Score

MINIMUM = 0.0

_NUMBER = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?")


def score(text: str, answer: Any) -> Score:
    """Return 1 if the last number of the text equals the answer (a number, or text of one), else 0.

    Numbers are compared by value, and nothing is computed: ``2 + 3`` names 3, not 5.
    """
    numbers = _NUMBER.findall(text)
    right = bool(numbers) and Decimal(numbers[-1]) == Decimal(str(answer))
    return Score(float(right), right, {"last_number": float(right)}, parsed=bool(numbers))
