r"""Math problems with the final answer in ``\boxed{}``."""

import math
from decimal import Decimal
from typing import Any

from rewards.errors import CodedValueError

INSTRUCTION = r"Let's think step by step and output the final answer within \boxed{}."


def ask(question: str) -> str:
    """Append the answer instruction unless the question already contains one."""
    instructed = (
        "\\boxed" in question or "####" in question or "Let's think step by step" in question
    )
    return question if instructed else f"{question} {INSTRUCTION}"


def read_answer(value: Any) -> Any:
    """Return the accepted answer(s): text, a number, or a list of these.

    For GSM8K-style worked solutions, only the text after ``####`` is kept. A float without a
    fractional part becomes an int.

    Raises:
        ValueError: the answer has the wrong type, is empty, or is not a finite number.
    """
    if isinstance(value, list) and value:
        return [read_answer(item) for item in value]
    if isinstance(value, Decimal):  # from a Parquet column
        value = str(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise CodedValueError(
            "an answer must be text, a number, or a list of these", code="invalid-answer"
        )
    if isinstance(value, str):
        text = value.rsplit("####", 1)[-1].strip()
        if not text:
            raise CodedValueError("the answer is empty", code="empty-answer")
        return text
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        raise CodedValueError("the answer is not a finite number", code="answer-not-finite")
    return int(value) if value.is_integer() else value
