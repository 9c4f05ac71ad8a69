r"""Notations that math-verify misreads, brought to a form that it reads.

``spellings`` returns the forms of an answer; two answers are equal if a form of one equals a form
of the other. Ratios, units and number bases are compared here, because math-verify drops them.
"""

import re
from dataclasses import dataclass

from rewards.notation import plain_characters, without_grouping

_NUMERAL = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)"
_REPLACED = (
    (re.compile(r"\\varnothing"), r"\\emptyset"),
    (re.compile(r"\\(?:left|right|big|Big)?\s*\\?langle\s*"), "("),
    (re.compile(r"\s*\\(?:left|right|big|Big)?\s*\\?rangle"), ")"),
    (re.compile(r"\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*"), ","),
    (re.compile("°|º"), r"^\\circ"),
    (re.compile(r"(?<=\d)\s*degrees?\b"), r"^\\circ"),
)
_SCIENTIFIC = re.compile(rf"(?<![\w\\])({_NUMERAL})[eE]([-+]?\d{{1,4}})(?![\w])")
_TEXT = re.compile(
    r"\\(?:text|textrm|mathrm|mbox|textbf|mathbf|operatorname)\s*\{\s*([^{}]*?)\s*\}"
)
_CHOICE = re.compile(r"\(?([A-J])\)?\.?")
_CHOICE_AND_ANSWER = re.compile(
    r"\\(?:textbf|text|mathrm|mathbf)\s*\{\s*\(?([A-J])\)?\s*\}(?:\\quad|\\ |[~\s.:])*(.+)",
    re.DOTALL,
)
_UNIT = re.compile(
    rf"({_NUMERAL}|\\d?frac\{{[^{{}}]*\}}\{{[^{{}}]*\}})(\s*)([A-Za-z][A-Za-z /^\d]*)\.?"
)
_RATIO = re.compile(rf"({_NUMERAL})\s*:\s*({_NUMERAL})")
_BASE = re.compile(r"([0-9A-Fa-f]+)_\{?(\d{1,2})\}?")
_PERCENT = re.compile(r"(.+?)\s*\\?%")
_MIN_UNIT = 2
_ONE_LETTER_UNITS = frozenset("mgslhLNJWVAKCF")
# words behind a number that belong to the formula
_NO_UNITS = frozenset(("and", "or", "to", "mod", "pi", "sqrt", "inf", "infty", "i", "e", "x", "y"))


@dataclass(frozen=True)
class Spelling:
    """A form of an answer for math-verify, and what math-verify would drop."""

    formula: str
    unit: str = ""
    is_ratio: bool = False
    percent: bool = False


def spellings(answer: str) -> list[Spelling]:
    """Return the forms of an answer, at least one."""
    text = without_grouping(plain_characters(answer)).strip()
    text = text.removeprefix("$").removesuffix("$").strip()
    for pattern, plain in _REPLACED:
        text = pattern.sub(plain, text)
    with_choice = _CHOICE_AND_ANSWER.fullmatch(text)
    if with_choice:
        return [Spelling(with_choice[1]), *spellings(with_choice[2])]
    text = _SCIENTIFIC.sub(r"\1 \\cdot 10^{\2}", text)
    unwrapped = _TEXT.sub(r" \1", text).strip()
    choice = _CHOICE.fullmatch(unwrapped)
    if choice:
        return [Spelling(choice[1])]
    in_base = _BASE.fullmatch(text)
    if in_base:
        return [Spelling(_from_base(in_base[1], int(in_base[2])) or text)]
    if _RATIO.fullmatch(text):
        return [Spelling(text, is_ratio=True)]
    percent = _PERCENT.fullmatch(text)
    if percent:
        return [Spelling(percent[1], percent=True)]
    with_unit = _UNIT.fullmatch(unwrapped)
    if with_unit and _is_unit(with_unit[3].strip(), separate=bool(with_unit[2])):
        return [Spelling(with_unit[1], unit=_singular(with_unit[3].strip()))]
    return [Spelling(text)]


def comparable(gold: Spelling, given: Spelling) -> bool:
    """Return whether units and ratios do not already tell the two apart."""
    if gold.is_ratio != given.is_ratio:
        return False
    return not gold.unit or not given.unit or gold.unit == given.unit


def _is_unit(word: str, separate: bool) -> bool:
    if not separate or word in _NO_UNITS:
        return False
    return word in _ONE_LETTER_UNITS or len(word) >= _MIN_UNIT


def _singular(unit: str) -> str:
    words = unit.lower() if len(unit) > _MIN_UNIT else unit
    return words.removesuffix("s") if len(words) > _MIN_UNIT else words


def _from_base(digits: str, base: int) -> str:
    """Return the number in decimal digits, or "" if these are no digits of the base."""
    try:
        return str(int(digits, base))
    except ValueError:
        return ""
