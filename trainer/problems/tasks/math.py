r"""Mathematics problems whose final answer stands in ``\boxed{}``."""

import math
from typing import Any

INSTRUCTION = r"Let's think step by step and output the final answer within \boxed{}."


def ask(question: str) -> str:
    """Return the question with the instruction, unless it already says how to answer."""
    instructed = (
        "\\boxed" in question or "####" in question or "Let's think step by step" in question
    )
    return question if instructed else f"{question} {INSTRUCTION}"


def read_answer(value: Any) -> Any:
    """Return the accepted answer or answers: text, a number, or a list of these.

    Of a worked solution in the form of GSM8K only what follows ``####`` is kept.

    Raises:
        ValueError: neither of these, or empty.
    """
    if isinstance(value, list) and value:
        return [read_answer(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("an answer is text, a number or a list of these")
    if isinstance(value, str):
        text = value.rsplit("####", 1)[-1].strip()
        if not text:
            raise ValueError("the answer is empty")
        return text
    if not math.isfinite(value):
        raise ValueError("the answer is not a finite number")
    return int(value) if float(value).is_integer() else value
