r"""Rewrite notations that math-verify misreads into forms that it reads.

``spellings`` returns the forms of an answer; two answers are equal if a form of one equals a form
of the other. Ratios, units, percentages, names of points and number bases are handled here, because
math-verify drops or confuses them.
"""

import itertools
import re
from dataclasses import dataclass
from fractions import Fraction

from rewards.notation import plain_characters, without_grouping
from rewards.units import canonical_unit, is_glued_unit, is_unit

_NUMERAL = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)"
_GAP = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![A-Za-z]))*"
_SIZE = r"(?:\\(?:left|right|[bB]igg?[lrm]?)\s*)?"
_REPLACED = (
    (re.compile(r"\\varnothing(?![A-Za-z])|∅"), r"\\emptyset"),
    (re.compile(rf"{_SIZE}(?:\\langle(?![A-Za-z])|⟨)\s*"), "("),
    (re.compile(rf"\s*{_SIZE}(?:\\rangle(?![A-Za-z])|⟩)"), ")"),
    (re.compile(r"^<([^<>]*,[^<>]*)>$"), r"(\1)"),
    (re.compile(r"°|º"), r"^\\circ"),
    (re.compile(r"\\(?:mathrm|text|operatorname)\s*\{\s*([ei])\s*\}"), r"\1"),
    (re.compile(r"\\log_\{?e\}?(?![A-Za-z])"), r"\\ln"),
    (re.compile(r"^(?:\\approx(?![A-Za-z])|≈)\s*"), ""),
    (re.compile(r"\\colon(?![A-Za-z])|∶"), ":"),
    (re.compile(r"(?<=[\d}])\.$"), ""),
)
_AND = re.compile(r"\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b)\s*")
_INEQUALITY = re.compile(r"[<>≤≥]|\\(?:[lg]eq?(?:slant)?|lt|gt)(?![A-Za-z])")
_TEXT_COMMAND = r"\\(?:text(?:rm|bf|it|sf)?|math(?:rm|bf|it|sf)|mbox|operatorname)"
_TEXT = re.compile(rf"{_TEXT_COMMAND}\s*\{{[\s~]*([^{{}}]*?)[\s~]*\}}")
_SCIENTIFIC = re.compile(rf"(?<![\w\\])({_NUMERAL})[eE]([-+]?\d{{1,4}})(?![\w])")
_REPEATING = re.compile(
    r"(?<![\d.])(-?\d{0,9})\.(\d{0,9})\\(?:overline|bar)\s*\{?(\d{1,9})\}?(?!\d)"
)
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer)\s*:?\s*)?[(\[]?([A-J])[)\]]?[.:]?", re.IGNORECASE
)
_CHOICE_AND_ANSWER = (
    re.compile(
        rf"{_TEXT_COMMAND}\s*\{{\s*\(?([A-J])\)?[.:]?\s*\}}(?:\\quad|\\ |[~\s.:])*(.+)", re.DOTALL
    ),
    re.compile(r"\(?([A-J])\)\s+(.+)", re.DOTALL),
    re.compile(r"([A-J])[.:]\s+(.+)", re.DOTALL),
)
_VARIABLE = re.compile(r"[A-Za-z]\s*=\s*(?=[-+\d.\\])")
_DOLLARS = re.compile(rf"\\\$\s*({_NUMERAL})")
_DEGREES = re.compile(r"([^=<>,]+?)\s*\^\s*\{?\s*\\circ\s*\}?")
_WRAPPED_UNIT = re.compile(
    rf"(.*[\d}})a-z])({_GAP}){_TEXT_COMMAND}\s*\{{[\s~]*([A-Za-z¢][^{{}}\d]*?)[\s~]*\}}"
    rf"{_GAP}(\^\s*\{{?\s*[23]\s*\}}?|[²³])?",
    re.DOTALL,
)
_PLAIN_UNIT = re.compile(
    rf"({_NUMERAL}|\\[dt]?frac\s*\{{[^{{}}]*\}}\s*\{{[^{{}}]*\}})({_GAP})"
    r"([A-Za-z¢][A-Za-z¢ /^²³\d]*)\.?"
)
_RATIO_MARK = re.compile(rf"{_GAP}(?::|\\text\s*\{{\s*to\s*\}}|(?<=[\d}}])\s+to\s+){_GAP}")
_RATIO_TERM = re.compile(r"[-+\w\s.,^{}()\\]+")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_MAX_RATIO_TERMS = 6
_BASE = re.compile(r"([0-9A-Fa-f]+)_\{?(\d{1,2})\}?")
_PERCENT = re.compile(r"(.+?)(?:\s|\\[,;: ])*(?:\\?%|\\?\s*percent)", re.DOTALL)
_CONTINUED = re.compile(r"\d\s*(?:\\(?:l|c)?dots|\.\.\.|…)$")
_SHAPE = re.compile(r"\\(angle|triangle|vec|overrightarrow|overleftrightarrow)(?![A-Za-z])")
_NAME_OF_POINTS = re.compile(r"[A-Z]{2,5}")


_NUMBER_AND_LETTER = re.compile(rf"{_NUMERAL}[a-zA-Z]")
_OTHER_STRUCTURE = re.compile(r"[=<>≤≥±|]|\\(?:pm|[lg]eq?|neq?|in|cup|cap|infty|begin|mathbb)")
_GROUPED_BY_COMMAS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_EMPTY_SET = re.compile(r"\\\{\s*\\\}")
_DEPTH = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_TIME = re.compile(r"(\d{1,2}):(\d{2})\s*([ap])\.?\s*m\.?", re.IGNORECASE)


@dataclass(frozen=True)
class Spelling:
    """A form of an answer for math-verify, and the parts that math-verify would drop."""

    formula: str
    unit: str = ""
    is_ratio: bool = False
    percent: bool = False
    points: str = ""  # "ABC" in \angle ABC, which math-verify reads as a product of symbols
    is_continued: bool = False  # ends in dots: 4.0\ldots

    @property
    def text(self) -> str:
        """The form in lower case without LaTeX's text commands and spaces."""
        return "".join(_TEXT.sub(r" \1 ", self.formula).split()).lower()


def spellings(answer: str) -> list[Spelling]:
    """Return the forms of an answer, at least one."""
    text = without_grouping(plain_characters(answer)).strip()
    text = text.removeprefix("$").removesuffix("$").strip()
    for pattern, plain in _REPLACED:
        text = pattern.sub(plain, text)
    text = _list_of(text)
    for pattern in _CHOICE_AND_ANSWER:
        with_choice = pattern.fullmatch(text)
        if with_choice:
            return [Spelling(with_choice[1]), Spelling(text), *spellings(with_choice[2])]
    text = _REPEATING.sub(_as_fraction, text)
    text = _SCIENTIFIC.sub(r"\1 \\cdot 10^{\2}", text)
    unwrapped = _TEXT.sub(r" \1", text).strip()
    choice = _CHOICE.fullmatch(unwrapped)
    if choice:
        return [Spelling(choice[1].upper())]
    in_base = _BASE.fullmatch(text)
    if in_base:
        return [Spelling(_from_base(in_base[1], int(in_base[2])))]
    points = _points_of(text)
    if points:
        return [Spelling(points, points=points)]
    percent = _PERCENT.fullmatch(unwrapped)
    if percent:
        return [Spelling(percent[1], percent=True)]
    return [
        _as_ratio(text)
        or _as_time(unwrapped)
        or _with_unit(text, unwrapped)
        or _plain(text, unwrapped)
    ]


def comparable(gold: Spelling, given: Spelling) -> bool:
    """Return whether math-verify may compare two answers. Return False if both have units or names
    of points and these differ, if their lists differ in structure (`_same_structure`), or if only
    one of them is a ratio or ends in dots.
    """
    if gold.is_ratio != given.is_ratio or gold.is_continued != given.is_continued:
        return False
    if gold.points and given.points:
        return gold.points == given.points
    if not _same_structure(gold.formula, given.formula):
        return False
    return not gold.unit or not given.unit or gold.unit == given.unit


def _same_structure(gold: str, given: str) -> bool:
    r"""Return whether math-verify may compare two formulas that contain lists.

    Math-verify treats ``(1,2)``, ``1,2`` and ``\{1,2\}`` as equal, and also ``1,2,2`` and ``1,2``,
    ``\{5\}`` and 5, ``2t`` and 2. Formulas with equations or ``\pm`` may write the same list in
    other ways, so they are always compared.
    """
    if not gold or not given:
        return True
    for first, second in ((gold, given), (given, gold)):
        if _NUMBER_AND_LETTER.fullmatch(first) and re.fullmatch(_NUMERAL, second):
            return False
    if _OTHER_STRUCTURE.search(gold) or _OTHER_STRUCTURE.search(given):
        return True
    gold_bracket, gold_items = _items(gold)
    given_bracket, given_items = _items(given)
    brackets = (gold_bracket, given_bracket)
    if min(gold_items, given_items) > 1 and gold_bracket != given_bracket and "(" in brackets:
        return False
    if gold_bracket == given_bracket == "":
        return gold_items == given_items
    if gold_items == given_items == 1:
        return (gold_bracket == r"\{") == (given_bracket == r"\{")
    return True


def _items(formula: str) -> tuple[str, int]:
    """Return the bracket around a formula, "" without one, and the number of items of its list."""
    text = re.sub(r"\\(?:left|right)", "", formula).strip()
    if _GROUPED_BY_COMMAS.fullmatch(text) or _EMPTY_SET.fullmatch(text):
        return "", 1
    bracket = ""
    if text.startswith("(") and text.endswith(")") and _closes_at_end(text[1:-1]):
        bracket = "("
        text = text[1:-1]
    elif text.startswith(r"\{") and text.endswith(r"\}") and _closes_at_end(text[2:-2]):
        bracket = r"\{"
        text = text[2:-2]
    depths = itertools.accumulate(_DEPTH.get(character, 0) for character in text)
    return bracket, 1 + sum(
        character == "," and depth == 0 for character, depth in zip(text, depths, strict=True)
    )


def _closes_at_end(inner: str) -> bool:
    """Return whether the brackets around ``inner`` belong together."""
    depths = itertools.accumulate(_DEPTH.get(character, 0) for character in inner)
    return min(depths, default=0) >= 0


def _list_of(text: str) -> str:
    r"""Return ``1 \text{ and } 2`` as ``1,2``, and ``x<2 \text{ or } x>3`` as a union."""
    parts = _AND.split(text)
    if len(parts) == 1:
        return text
    if all(_INEQUALITY.search(part) for part in parts) and "and" not in text:
        intervals = [_interval_of(part) for part in parts]
        if all(intervals):
            return r" \cup ".join(intervals)
    return ",".join(parts)


_BOUND = re.compile(
    r"\s*[A-Za-z]\s*(<|>|≤|≥|\\leq?(?:slant)?(?![A-Za-z])|\\geq?(?:slant)?(?![A-Za-z])|"
    r"\\lt(?![A-Za-z])|\\gt(?![A-Za-z]))\s*([^<>≤≥=]+)"
)


def _interval_of(inequality: str) -> str:
    r"""Return ``x \le 2`` as ``(-\infty, 2]``, or "" if it is not one bound of a variable."""
    bound = _BOUND.fullmatch(inequality)
    if bound is None or _INEQUALITY.search(bound[2]):
        return ""
    is_below = bound[1] in ("<", "≤") or bound[1].startswith(r"\l")
    is_open = bound[1] in ("<", ">", r"\lt", r"\gt")
    value = bound[2].strip()
    if is_below:
        end = ")" if is_open else "]"
        return rf"(-\infty,{value}{end}"
    start = "(" if is_open else "["
    return rf"{start}{value},\infty)"


def _as_fraction(match: re.Match[str]) -> str:
    r"""Return ``0.1\overline{6}`` as a fraction."""
    integer, fixed, repeated = match.groups()
    digits = Fraction(int(fixed or 0)) + Fraction(int(repeated), 10 ** len(repeated) - 1)
    value = int(integer.lstrip("-") or 0) + digits / 10 ** len(fixed)
    sign = "-" if integer.startswith("-") else ""
    return rf"{sign}\frac{{{value.numerator}}}{{{value.denominator}}}"


def _points_of(text: str) -> str:
    r"""Return the points of ``\angle ABC``, ``\overline{\mathrm{AB}}`` or ``AB``, or ""."""
    name = _SHAPE.sub("", text.replace(r"\overline", ""))
    name = re.sub(_TEXT_COMMAND, "", name)
    name = re.sub(r"[\s{}]", "", name)
    return name if _NAME_OF_POINTS.fullmatch(name) else ""


def _with_unit(text: str, unwrapped: str) -> Spelling | None:
    """Return the number and the unit of a quantity, or None."""
    text = _VARIABLE.sub("", text, count=1) if _VARIABLE.match(text) else text
    unwrapped = _VARIABLE.sub("", unwrapped, count=1) if _VARIABLE.match(unwrapped) else unwrapped
    in_dollars = _DOLLARS.fullmatch(text)
    if in_dollars:
        return Spelling(in_dollars[1], unit="dollar")
    in_degrees = _DEGREES.fullmatch(text)
    if in_degrees:
        return Spelling(in_degrees[1], unit="degree")
    wrapped = _WRAPPED_UNIT.fullmatch(text.removesuffix("."))
    if wrapped and "," not in wrapped[1] and is_unit(wrapped[3].strip()):
        return Spelling(wrapped[1].strip(), unit=canonical_unit(wrapped[3] + (wrapped[4] or "")))
    plain = _PLAIN_UNIT.fullmatch(unwrapped)
    if plain is None:
        return None
    words = plain[3].strip()
    if is_unit(words) if plain[2] else is_glued_unit(words):
        return Spelling(plain[1], unit=canonical_unit(words))
    return None


def _as_ratio(text: str) -> Spelling | None:
    """Return ``1:2`` as the quotient 1/2 and ``1:2:3`` as the pair (2/1, 3/1), or None.

    A time such as 10:30 is read as a ratio, too, which is harmless: equal times are equal ratios.
    """
    terms = [term.strip() for term in _RATIO_MARK.split(text)]
    if not 2 <= len(terms) <= _MAX_RATIO_TERMS:
        return None
    for term in terms:
        if not _RATIO_TERM.fullmatch(term) or _WORD.search(term):
            return None
        if term.count("{") != term.count("}") or term.count("(") != term.count(")"):
            return None
    if len(terms) == 2:
        return Spelling(rf"\frac{{{terms[0]}}}{{{terms[1]}}}", is_ratio=True)
    quotients = [rf"\frac{{{term}}}{{{terms[0]}}}" for term in terms[1:]]
    return Spelling(f"({', '.join(quotients)})", is_ratio=True)


def _as_time(text: str) -> Spelling | None:
    """Return a time such as ``3:30 PM`` with the unit am or pm, or None."""
    time = _TIME.fullmatch(text)
    if time is None:
        return None
    return Spelling(f"{time[1]}.{time[2]}", unit=f"{time[3].lower()}m", is_ratio=True)


def _plain(text: str, unwrapped: str) -> Spelling:
    r"""Return the form of a plain formula, without unit, ratio or points. ``\text{5.5}`` becomes
    ``5.5``, and the words of a list such as ``\text{C, A}`` are sorted.
    """
    is_numeral = re.fullmatch(rf"{_NUMERAL}(?:\s*,\s*{_NUMERAL})*", unwrapped) is not None
    is_list_of_words = "," in unwrapped and re.fullmatch(r"[A-Za-z, ]+", unwrapped) is not None
    if is_list_of_words:
        words = sorted(word.strip().lower() for word in unwrapped.split(","))
        return Spelling(rf"\text{{{', '.join(words)}}}")
    formula = unwrapped if is_numeral else text
    return Spelling(formula, is_continued=_CONTINUED.search(text) is not None)


def _from_base(digits: str, base: int) -> str:
    """Convert a number to decimal digits. Return it as a symbol if the base is not from 2 to 36 or
    a digit is not valid in it: math-verify would drop the base.
    """
    symbol = rf"\text{{{digits}_{base}}}"
    if base < 2:  # int() would guess base 0 from the digits
        return symbol
    try:
        return str(int(digits, base))
    except ValueError:
        return symbol
