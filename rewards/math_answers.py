r"""Binary reward for mathematics: 1 if the final answer equals an accepted answer, else 0.

The final answer is the content of the last ``\boxed{...}``, else what follows the last ``####``,
else the formula or number that math-verify finds last. Math-verify decides whether two answers are
equal. `rewards.math_guard` limits the size of an answer and the time of a comparison.
"""

import logging
from typing import Any

from rewards.math_guard import may_evaluate, may_parse, time_limit
from rewards.score import Score

MINIMUM = 0.0

_ROUNDING = 10  # decimals
_END_CHARS = 10_000  # where a box is looked for
_TAIL_CHARS = 600


def prepare() -> None:
    """Import math-verify and sympy and compile their patterns, so that no completion's time limit
    pays for it.
    """
    # it warns that its own time limits are off
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    _equal(_parse(_box("x + 1")), _parse("2"))


def score(text: str, answer: Any) -> Score:
    """Score a completion, prefill included, by an accepted answer (LaTeX, plain text, number) or a
    list of them.

    Raises:
        TimeoutError: the comparison takes too long.
    """
    accepted = answer if isinstance(answer, list | tuple) else [answer]
    with time_limit():
        given = _parse(final_answer(text))
        comparable = given if given and may_evaluate(given[0]) else given[-1:]
        right = any(_equal(_parse(_box(str(gold).strip())), comparable) for gold in accepted)
    return Score(float(right), right, {"math": float(right)}, parsed=bool(given))


def final_answer(text: str) -> str:
    r"""Return the final answer as ``\boxed{...}``, or the end of a text that marks none."""
    from latex2sympy2_extended.math_normalization import extract_boxed_content

    conclusion = text.rpartition("</think>")[2]
    for part in (conclusion[-_END_CHARS:], text[-_END_CHARS:]):
        content = extract_boxed_content(part)
        if content != part:
            return _box(content)
    _, mark, after = conclusion.rpartition("####")
    return _box(after.strip().partition("\n")[0]) if mark else conclusion[-_TAIL_CHARS:]


def _box(formula: str) -> str:
    return f"\\boxed{{{formula}}}"


def _parse(final: str) -> list[Any]:
    """Return the formula and its text, or only its text; nothing if there is none or it must not be
    parsed.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    kinds: list[Any] = [LatexExtractionConfig()]
    if not final.startswith(_box("")[:-1]):  # a number in a box that is no formula is not its value
        kinds.append(ExprExtractionConfig())
    return list(parse(final, kinds, parsing_timeout=None)) if may_parse(final) else []


def _equal(gold: list[Any], given: list[Any]) -> bool:
    from math_verify import verify

    options = {
        "float_rounding": _ROUNDING,
        "allow_set_relation_comp": True,
        "timeout_seconds": None,
    }
    return bool(verify(gold, given, **options))
