r"""Binary reward for mathematics: 1 if the final answer equals an accepted answer, else 0.

The final answer is the content of the last ``\boxed{...}``, else the first line after the last
``####``, else a choice such as "the answer is (D)" at the end, else the last formula or number that
math-verify finds. Math-verify compares the answers. `rewards.math_guard` limits answer size and
comparison time.
"""

import logging
import re
from typing import Any

from rewards.errors import CodedValueError
from rewards.math_guard import is_safe_to_evaluate, is_safe_to_parse, time_limit
from rewards.math_notation import Spelling, comparable, spellings
from rewards.notation import unwrapped_answer
from rewards.score import Score

MINIMUM = 0.0

_ROUNDING = 10  # decimals to which math-verify rounds
_RELATIVE = 1e-8  # largest relative difference of equal numbers
_DIGITS = 20  # precision of evaluated formulas [decimal digits]
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;&.]|\\[,;: ()\[\]]|\\q?quad|\band\b|\bor\b|\\text\s*\{\s*(?:and|or)\s*\}|"
    r"\b[A-Za-z](?:_\{?\w\}?)?\s*=)*"
)
# "The answer is **(D)**." at the end of a completion
_CHOICE_IN_WORDS = re.compile(
    r"\b(?:[Aa]nswer|[Oo]ption|[Cc]hoice)\b\s*(?:is|:|=)?[\s*$:]*(?:option|choice)?[\s*$]*"
    r"(?:\\\w+\{)?\(?([A-J])[)}\s.*$]*\Z"
)
_END_CHARS = 10_000  # number of characters at the end that are searched for \boxed{}
_TAIL_CHARS = 600  # number of characters at the end that are searched for an unmarked answer


def prepare() -> None:
    """Import math-verify and sympy and compile their patterns now, so that the time limit of the
    first completion does not include this.
    """
    # math-verify warns that its own time limits are off
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    _equal(_parse(_box("x + 1")), _parse("2"))


def score(text: str, answer: Any) -> Score:
    """Score prefill + completion against one accepted answer (LaTeX, plain text or a number) or a
    list of them.

    Raises:
        TimeoutError: extracting and comparing the answers takes too long.
        ValueError: an accepted answer is neither text nor a number.
    """
    accepted = answer if isinstance(answer, list | tuple) else [answer]
    for gold in accepted:
        if isinstance(gold, bool) or not isinstance(gold, str | int | float):
            raise CodedValueError(
                f"the answer {gold!r} is neither text nor a number", code="invalid-answer"
            )
    with time_limit():
        final = final_answer(text)
        given = _given_forms(final)
        right = any(
            _same(gold_form, given_form)
            for gold in accepted
            for gold_form in _forms(unwrapped_answer(str(gold)))
            for given_form in given
        )
    return Score(float(right), right, {"math": float(right)}, parsed=any(p for _, p in given))


_Form = tuple[Spelling, list[Any]]  # an answer as it is spelled, and as it was parsed


def _given_forms(final: str) -> list[_Form]:
    """Return the forms of the policy's final answer."""
    if not final.startswith(_box("")[:-1]):
        return [(Spelling(""), _comparable(_parse(final)))]
    content = final.removeprefix(_box("")[:-1]).removesuffix("}")
    return [(form, _comparable(parsed)) for form, parsed in _forms(content)]


def _forms(answer: str) -> list[_Form]:
    if not is_safe_to_parse(answer):  # the patterns of `spellings` may be slow on such an answer
        return [(Spelling(answer), [])]
    return [(form, _parse(_box(form.formula))) for form in spellings(answer)]


def _comparable(parsed: list[Any]) -> list[Any]:
    """Return a parsed answer without its formula if the formula is too large to evaluate; its text
    remains.
    """
    return parsed if parsed and is_safe_to_evaluate(parsed[0]) else parsed[-1:]


def _same(gold: _Form, given: _Form) -> bool:
    """Return whether two forms of answers are equal.

    A percentage equals its number and the fraction that it stands for: 12.5% equals 12.5 and 0.125.
    """
    if not comparable(gold[0], given[0]):
        return False
    if gold[0].text == given[0].text and gold[0].text:
        return True
    if gold[0].percent == given[0].percent:
        return _equal(gold[1], given[1])
    with_percent, other = (gold, given) if gold[0].percent else (given, gold)
    fraction = _parse(_box(rf"\frac{{{with_percent[0].formula}}}{{100}}"))
    return _equal(with_percent[1], other[1]) or _equal(fraction, other[1])


def final_answer(text: str) -> str:
    r"""Return the final answer as ``\boxed{...}``, or the end of the text if no answer is
    marked.
    """
    conclusion = text.rpartition("</think>")[2]
    for part in (conclusion[-_END_CHARS:], text[-_END_CHARS:]):
        boxes = _last_boxes(part)
        if boxes:
            return _box(",".join(boxes))
    _, mark, after = conclusion.rpartition("####")
    if mark:
        return _box(unwrapped_answer(after.strip().partition("\n")[0]))
    choice = _CHOICE_IN_WORDS.search(conclusion[-_TAIL_CHARS:])
    return _box(choice[1]) if choice else conclusion[-_TAIL_CHARS:]


def _last_boxes(text: str) -> list[str]:
    r"""Return the content of the last ``\boxed{}`` and of the boxes that precede it in the same
    list, such as ``\boxed{1} and \boxed{2}``; empty if there is no closed box.
    """
    boxes: list[str] = []
    end = 0
    for match in _BOX.finditer(text):
        if match.start() < end:
            continue  # a nested box
        depth = 1
        position = match.end()
        while position < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[position], 0)
            position += 1
        if depth:
            break  # an unclosed box
        if not _BETWEEN_BOXES.fullmatch(text[end : match.start()]):
            boxes.clear()
        boxes.append(text[match.end() : position - 1])
        end = position
    return boxes


def _box(formula: str) -> str:
    return f"\\boxed{{{formula}}}"


def _parse(final: str) -> list[Any]:
    """Return [formula, text] of a final answer, or [text] if the text is not a formula; empty if
    math-verify finds nothing or `is_safe_to_parse` rejects the answer.
    """
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    kinds: list[Any] = [LatexExtractionConfig()]
    # do not take a number out of a box whose content is not a formula
    if not final.startswith(_box("")[:-1]):
        kinds.append(ExprExtractionConfig())
    return list(parse(final, kinds, parsing_timeout=None)) if is_safe_to_parse(final) else []


def _equal(gold: list[Any], given: list[Any]) -> bool:
    from math_verify import verify

    options = {
        "float_rounding": _ROUNDING,
        "allow_set_relation_comp": True,
        "timeout_seconds": None,
    }
    return bool(verify(gold, given, **options)) and _close(gold[:1], given[:1])


def _close(gold: list[Any], given: list[Any]) -> bool:
    """Return whether two numbers are equal within a relative tolerance; True for other formulas.
    The rounding of `_equal` is absolute, so all tiny numbers would be equal.
    """
    values = []
    for formula in (*gold, *given):
        if not getattr(formula, "is_number", False) or not is_safe_to_evaluate(formula):
            return True
        value = formula.evalf(_DIGITS)
        if not value.is_Float and not value.is_Integer:
            return True
        values.append(value)
    if len(values) < 2:
        return True
    first, second = values
    return bool(abs(first - second) <= _RELATIVE * max(abs(first), abs(second)))
