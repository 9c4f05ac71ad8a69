r"""Binary reward for mathematics: 1 if the final answer equals an accepted answer, else 0.

The final answer is what the last ``\boxed{...}`` holds, else what follows the last ``####``, else the last
formula or number of the text, else the words after "answer is". Equality is that of `rewards.math_forms`, without
time limits (math-verify's own need the main thread): comparing a formula such as ``9^{9^{9}}`` does not end, so
this function belongs into a process that can be killed.
"""

import logging
import re
from typing import Any

from rewards.math_forms import MAX_NESTING, same_answer
from rewards.math_notation import nesting
from rewards.math_values import last_formula
from rewards.score import Score

MINIMUM = 0.0

# No honest final answer is longer; the parsers' time grows faster than the length.
_MAX_ANSWER_CHARS = 1000
_TAIL_CHARS = 600
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_SAID = re.compile(r"answer(?: is|:)\s*([^\n]{1,100})", re.IGNORECASE)


def prepare() -> None:
    """Import math-verify (about half a second), so that no completion's time limit pays for it."""
    import math_verify  # noqa: F401

    # One line per process about the time limits that are off on purpose.
    logging.getLogger("math_verify").setLevel(logging.ERROR)


def score(text: str, answer: Any) -> Score:
    """Score a completion, prefill included, by an accepted answer (LaTeX, plain text or a number) or a list of
    them.
    """
    final = final_answer(text)
    if final is None:
        return Score(0.0, False, {"math": 0.0}, parsed=False)
    accepted = answer if isinstance(answer, list | tuple) else [answer]
    right = any(same_answer(str(gold).strip(), final) for gold in accepted)
    return Score(float(right), right, {"math": float(right)})


def final_answer(text: str) -> str | None:
    """The text of the final answer, None where there is none that could be read."""
    conclusion = text.rsplit("</think>", 1)[-1]
    for part in (conclusion, text):
        boxed = _last_boxed(part)
        if boxed is not None:
            return boxed if 0 < len(boxed) <= _MAX_ANSWER_CHARS else None
    if "####" in conclusion:
        line = conclusion.rsplit("####", 1)[1].strip().split("\n", 1)[0].strip()
        return line if 0 < len(line) <= _MAX_ANSWER_CHARS else None
    tail = conclusion[-_TAIL_CHARS:]
    formula = last_formula(tail) if nesting(tail) <= MAX_NESTING else None
    said = _SAID.findall(tail) if formula is None else []
    return said[-1].strip() if said else formula


def _last_boxed(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}``; None without one, also where its braces never close."""
    for opening in reversed([match.end() for match in _BOXED.finditer(text)][-8:]):
        depth = 1
        for position in range(opening, min(len(text), opening + 20 * _MAX_ANSWER_CHARS)):
            character = text[position]
            if character in "{}" and text[position - 1] != "\\":
                depth += 1 if character == "{" else -1
                if depth == 0:
                    return text[opening:position].strip()
    return None
