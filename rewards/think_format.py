"""Format reward for ``<think>...</think> <answer>...</answer>``."""

from typing import Any

from rewards.score import Score

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
MINIMUM = 0.0


def has_think_answer_form(text: str) -> bool:
    """Return whether each of the four tags occurs exactly once, and in order."""
    if any(text.count(tag) != 1 for tag in _TAGS):
        return False
    positions = [text.find(tag) for tag in _TAGS]
    return positions == sorted(positions)


def score(text: str, answer: Any) -> Score:
    """Return 1 if the format is right, else 0. The answer is ignored."""
    right = has_think_answer_form(text)
    return Score(float(right), right, {"format": float(right)}, parsed=right)
