r"""Binary reward for mathematics: 1 if the final answer equals an accepted answer, else 0.

The final answer is the content of the last ``\boxed{...}``, else the text after the last ``####``,
else the last formula or number that math-verify finds. Math-verify compares the answers.
`rewards.math_guard` limits answer size and comparison time.
"""

import logging
from typing import Any

from rewards.math_guard import may_evaluate, may_parse, time_limit
from rewards.score import Score

MINIMUM = 0.0

_ROUNDING = 10  # decimals
_END_CHARS = 10_000  # of the text's end that are searched for \boxed{}
_TAIL_CHARS = 600


def prepare() -> None:
    """Import math-verify and sympy and compile their patterns now, so that the first completion's
    time limit does not include it.
    """
    # silence its warning that its own time limits are off
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    _equal(_parse(_box("x + 1")), _parse("2"))


def score(text: str, answer: Any) -> Score:
    """Score prefill + completion against one accepted answer (LaTeX, plain text or a number) or a
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
    r"""Return the final answer as ``\boxed{...}``, or the end of the text if no answer is
    marked.
    """
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
    """Return [formula, text], or [text] if it is not a formula; empty if nothing was found or
    `may_parse` rejects it.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    kinds: list[Any] = [LatexExtractionConfig()]
    # do not take a number out of a box whose content is not a formula
    if not final.startswith(_box("")[:-1]):
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
