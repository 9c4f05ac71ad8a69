r"""Binary reward for mathematics: 1 if the final answer equals an accepted answer, else 0.

The final answer is what the last ``\boxed{...}`` holds, else what follows the last ``####``, else the last
formula or number of the text, else the words after "answer is". Equality is that of math-verify, whose own time
limits are off because they need the main thread; comparing a formula such as ``9^{9^{9}}`` does not end, so this
function belongs into a process that can be killed.
"""

import logging
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from rewards.score import Score

MINIMUM = 0.0

# No honest final answer is longer; the parsers' time grows faster than the length.
_MAX_ANSWER_CHARS = 1000
_MAX_NESTING = 12  # the LaTeX parser's time doubles with every level of brackets
_TAIL_CHARS = 600
# math-verify rounds to 6 decimals, which calls any two tiny numbers equal.
_TINY = 1e-3
_TINY_TOLERANCE = 1e-5  # relative
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_SAID = re.compile(r"answer(?: is|:)\s*([^\n]{1,100})", re.IGNORECASE)
_PLAIN_NUMBER = re.compile(r"[+-]?\d{1,30}(\.\d{1,30})?")
_SAME_MEANING = (
    (re.compile(r"\\(?:left|right|displaystyle|quad|qquad)(?![A-Za-z])|\\[!,;: ]|~|\$|\s+"), ""),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit|mbox)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"^\(([A-Za-z])\)\.?$"), r"\1"),  # the letter of a choice
)


def prepare() -> None:
    """Import math-verify (about half a second), so that no completion's time limit pays for it."""
    import math_verify  # noqa: F401

    # One line per process about the time limits that are off on purpose.
    logging.getLogger("math_verify").setLevel(logging.ERROR)


def score(text: str, answer: Any) -> Score:
    """Score a completion.

    Args:
        text: prefill and completion.
        answer: an accepted answer (text in LaTeX or plain, or a number), or a list of them.
    """
    final = final_answer(text)
    if final is None:
        return Score(0.0, False, {"math": 0.0}, parsed=False)
    accepted = answer if isinstance(answer, list | tuple) else [answer]
    right = any(_same(str(gold).strip(), final) for gold in accepted)
    return Score(float(right), right, {"math": float(right)})


def final_answer(text: str) -> str | None:
    """The text of the final answer, None where there is none that could be read."""
    conclusion = text.rsplit("</think>", 1)[-1]
    for part in (conclusion, text):
        boxed = last_boxed(part)
        if boxed is not None:
            return boxed if 0 < len(boxed) <= _MAX_ANSWER_CHARS else None
    if "####" in conclusion:
        line = conclusion.rsplit("####", 1)[1].strip().split("\n", 1)[0].strip()
        return line if 0 < len(line) <= _MAX_ANSWER_CHARS else None
    tail = conclusion[-_TAIL_CHARS:]
    formula = _last_formula(tail) if _nesting(tail) <= _MAX_NESTING else None
    said = _SAID.findall(tail) if formula is None else []
    return said[-1].strip() if said else formula


def last_boxed(text: str) -> str | None:
    r"""What the last complete ``\boxed{...}`` holds; None without one, also where its braces never close."""
    for opening in reversed([match.end() for match in _BOXED.finditer(text)][-8:]):
        depth = 1
        for position in range(opening, min(len(text), opening + 20 * _MAX_ANSWER_CHARS)):
            character = text[position]
            if character in "{}" and text[position - 1] != "\\":
                depth += 1 if character == "{" else -1
                if depth == 0:
                    return text[opening:position].strip()
    return None


def _last_formula(text: str) -> str | None:
    from math_verify import parse

    found = parse(text, parsing_timeout=None)
    return str(found[-1]) if found else None


def _same(gold: str, final: str) -> bool:
    plain_gold, plain_final = _plain(gold), _plain(final)
    if plain_gold == plain_final:
        return True
    if _PLAIN_NUMBER.fullmatch(plain_gold) and _PLAIN_NUMBER.fullmatch(plain_final):
        return Decimal(plain_gold) == Decimal(plain_final)
    if _nesting(final) > _MAX_NESTING:
        return False
    expected, given = _parse(gold), _parse(final)
    return any(_equal(one, other) for one in expected for other in given)


def _plain(answer: str) -> str:
    """The answer without the marks that change only its looks."""
    for pattern, replacement in _SAME_MEANING:
        answer = pattern.sub(replacement, answer)
    return answer.rstrip(".").casefold()


def _nesting(answer: str) -> int:
    depth = deepest = 0
    for character in answer:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return deepest


def _parse(answer: str) -> Sequence[Any]:
    from math_verify import LatexExtractionConfig, parse

    # Only as one formula: the library's plain-number search would read 1 out of any formula it cannot parse
    # and so call two different ones equal.
    return parse(f"\\boxed{{{answer}}}", [LatexExtractionConfig()], parsing_timeout=None) or []


def _equal(expected: Any, given: Any) -> bool:
    from math_verify import verify

    try:
        equal = verify(expected, given, timeout_seconds=None, raise_on_error=True)
        return bool(equal) and not _differ_though_tiny(expected, given)
    except MemoryError:
        raise
    except Exception:  # sympy raises almost anything on formulas that make no sense, and those are wrong
        return False


def _differ_though_tiny(expected: Any, given: Any) -> bool:
    if not (getattr(expected, "is_number", False) and getattr(given, "is_number", False)):
        return False
    one, other = complex(expected.doit()), complex(given.doit())
    size = max(abs(one), abs(other))
    return size < _TINY and abs(one - other) > _TINY_TOLERANCE * size
