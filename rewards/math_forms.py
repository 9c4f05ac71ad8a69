r"""Whether a final answer is an accepted one: first what kind of thing it is, then whether its parts are equal.

Kinds are kept apart: a pair is no list, an interval no pair of other brackets, a set of one no number, a number in
base 5 none in base 6. Within a kind what is only written differently is the same: an inequality and its interval,
a set in another order, a number with or without its unit, the letter of a choice with or without its text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from rewards.math_notation import different_units, inside, looks, nesting, number, quantity, split, tidy, without_text
from rewards.math_regions import RELATION, Interval, intervals
from rewards.math_values import same_value

_T = TypeVar("_T")

MAX_NESTING = 12  # the LaTeX parser's time doubles with every level of brackets
_DOTS = re.compile(r".*[\d}]\s*\\ldots", re.DOTALL)
_APPROXIMATELY = re.compile(r"\\approx(?![A-Za-z])|\\simeq(?![A-Za-z])")
_CHOICE = re.compile(r"(?:\(\s*([A-J])\s*\)|([A-J])\s*[).:])\s*(?:(?<=\s)|(?<=[).:])|$)(.*)", re.DOTALL)
_BASE = re.compile(r"\(?([0-9A-Za-z]+)\)?_\{?(\d{1,2})\}?")
_NAME = re.compile(
    r"(?:\\(angle|triangle|overline|overrightarrow|overleftrightarrow|widehat)\s*)?\{?\s*([A-Z]{1,5}'?)\s*\}?"
)
_WORDS = re.compile(r"\\text\{[^{}]*\}|[A-Za-z][a-z]{3,}(?: [A-Za-z]+)*|[A-Z]{2,}")
_NOTHING = ("nosolution", "nosolutions", "norealsolution", "norealsolutions", r"\emptyset")
_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[^{}]*\})?(.*)\\end\{\1\}", re.DOTALL)
_COMMA = re.compile(r"[,;]|\s*(?:\\text\{\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*")
_EQUALS = re.compile(r"=")
_LABEL = re.compile(r"\\?[A-Za-z]+(?:_(?:\w|\{\w+\}))?'?(?:\([^()]*\))?|\(\s*[a-z](?:\s*,\s*[a-z])*\s*\)")


@dataclass(frozen=True)
class _Listing:
    """Several answers in one: a ``tuple`` is ordered, a ``set`` counts nothing twice, a ``list`` does."""

    kind: str
    brackets: str
    items: Sequence[str]


def same_answer(gold: str, final: str) -> bool:
    """Whether ``final`` says the same as the accepted answer ``gold``, both in LaTeX or plain text."""
    if looks(gold) == looks(final):
        return True
    return _same(_exactly(tidy(gold)), _exactly(tidy(final)))


def _same(gold: str, final: str) -> bool:
    one, other = looks(gold), looks(final)
    if not one or not other:
        return False
    if one == other or {one, other} <= set(_NOTHING):
        return True
    if _DOTS.fullmatch(final) or nesting(final) > MAX_NESTING:
        return False
    for compare in _KINDS:
        verdict = compare(gold, final)
        if verdict is not None:
            return verdict
    return same_value(gold, final)


def _exactly(answer: str) -> str:
    r"""The side before ``\approx``, or the one after it where only a name stands before."""
    parts = split(answer, _APPROXIMATELY)
    if len(parts) == 1:
        return answer
    return parts[-1] if not parts[0] or _LABEL.fullmatch(parts[0]) else parts[0]


# Each of the following compares answers of one kind; None where the kind does not apply to them.


def _choices(gold: str, final: str) -> bool | None:
    one, other = _CHOICE.fullmatch(without_text(gold)), _CHOICE.fullmatch(without_text(final))
    if not one and not other:
        return None
    letters = [match and (match[1] or match[2]) for match in (one, other)]
    contents = [match[3].strip() if match else text for match, text in ((one, gold), (other, final))]
    if all(letters):
        return letters[0] == letters[1]
    bare = without_text(gold if letters[1] else final)
    if re.fullmatch("[A-J]", bare):
        return bare in letters
    return bool(contents[0] and contents[1]) and _same(*contents)


def _bases(gold: str, final: str) -> bool | None:
    one, other = _BASE.fullmatch(without_text(gold)), _BASE.fullmatch(without_text(final))
    digits = [match and _digits(match[1], int(match[2])) for match in (one, other)]
    if digits[0] is None and digits[1] is None:
        return None
    if one and other:
        return (one[1].casefold(), one[2]) == (other[1].casefold(), other[2])
    if one:  # the question names the base
        return looks(one[1]) == looks(final)
    return digits[1] is not None and number(gold) == digits[1]


def _regions(gold: str, final: str) -> bool | None:
    one, other = intervals(gold), intervals(final)
    if one is None or other is None:
        return None
    return _matched(one, other, _same_interval)


def _matrices(gold: str, final: str) -> bool | None:
    one, other = _rows(gold), _rows(final)
    if one is None and other is None:
        return None
    if one is None or other is None:
        vector, rest = (one, final) if one is not None else (other, gold)
        listing = _listing(rest)
        if vector is None or listing is None or listing.kind != "tuple" or 1 not in (len(vector), len(vector[0])):
            return False
        flat = [cell for row in vector for cell in row]
        return len(flat) == len(listing.items) and all(map(_same, flat, listing.items))
    return [len(row) for row in one] == [len(row) for row in other] and all(
        all(map(_same, row, other_row)) for row, other_row in zip(one, other, strict=True)
    )


def _listings(gold: str, final: str) -> bool | None:
    one, other = _listing(gold), _listing(final)
    if one is None and other is None:
        return None
    if one is None or other is None:
        # A pair may be said by name: x = 1, y = 2; or (x, y) = (1, 2).
        return _equations(gold, final) if _EQUALS.search(gold + final) else False
    labels, other_labels = _labels(one), _labels(other)
    if labels and other_labels:
        return labels.keys() == other_labels.keys() and all(_same(labels[k], other_labels[k]) for k in labels)
    if labels or other_labels:
        named, plain = (labels, other) if labels else (other_labels, one)
        ordered = [named[key] for key in sorted(named)]
        return plain.kind == "tuple" and len(ordered) == len(plain.items) and all(map(_same, ordered, plain.items))
    if "tuple" in (one.kind, other.kind):
        same_brackets = one.brackets == other.brackets or len(one.items) > 2
        same_kind = one.kind == other.kind and same_brackets and len(one.items) == len(other.items)
        return same_kind and all(map(_same, one.items, other.items))
    if one.kind == other.kind == "set":
        return _covers(one.items, other.items) and _covers(other.items, one.items)
    return _matched(one.items, other.items, _same)


def _equations(gold: str, final: str) -> bool | None:
    one, other = split(gold, _EQUALS), split(final, _EQUALS)
    if len(one) == len(other) == 1 or RELATION.search(gold + final):
        return None
    if len(one) == 1:
        return _same(gold, other[-1])
    if len(other) == 1:
        return bool(_LABEL.fullmatch(one[0])) and _same(one[-1], final)
    if _LABEL.fullmatch(one[0]) and _LABEL.fullmatch(other[0]):
        return looks(one[0]) == looks(other[0]) and _same(one[-1], other[-1])
    return None


def _names(gold: str, final: str) -> bool | None:
    one, other = _NAME.fullmatch(without_text(gold)), _NAME.fullmatch(without_text(final))
    if not one or not other or not (one[1] or other[1]):
        return None
    return one[2] == other[2] and (one[1] == other[1] or not (one[1] and other[1]))


def _words(gold: str, final: str) -> bool | None:
    # Equal words look the same; as formulas they would be products of their letters.
    return False if _WORDS.fullmatch(gold) or _WORDS.fullmatch(final) else None


def _quantities(gold: str, final: str) -> bool | None:
    (value, unit), (other, other_unit) = quantity(gold), quantity(final)
    if different_units(unit, other_unit) and not {unit, other_unit} & {"%", "degree"}:
        return False
    if not unit and not other_unit:
        exact, other_exact = number(gold), number(final)
        return exact == other_exact if exact is not None and other_exact is not None else None
    if _same(value, other) and (unit == other_unit or not different_units(unit, other_unit)):
        return True
    if (unit == "%") != (other_unit == "%"):
        return _same(_hundredth(value) if unit == "%" else value, _hundredth(other) if other_unit == "%" else other)
    if (unit == "degree") != (other_unit == "degree"):
        return _same(
            _radians(value) if unit == "degree" else value, _radians(other) if other_unit == "degree" else other
        )
    return False


_KINDS: tuple[Callable[[str, str], bool | None], ...] = (
    _choices,
    _bases,
    _regions,
    _matrices,
    _listings,
    _equations,
    _names,
    _words,
    _quantities,
)


def _digits(text: str, base: int) -> Fraction | None:
    try:
        return Fraction(int(text, base)) if 2 <= base <= 36 and re.search(r"\d", text) else None
    except ValueError:
        return None


def _rows(answer: str) -> list[list[str]] | None:
    match = _MATRIX.fullmatch(answer)
    if not match:
        return None
    rows = [row for row in re.split(r"\\\\", match[2]) if row.strip()]
    return [[cell.strip() for cell in row.split("&")] for row in rows] or None


def _listing(answer: str) -> _Listing | None:
    enclosed = inside(answer)
    if enclosed:
        opening, content, closing = enclosed
        items = split(content, _COMMA)
        if opening == "\\{":
            return _Listing("set", "{}", _without_common_label(_signs(items)))
        if len(items) > 1:
            return _Listing("tuple", "()" if opening == "\\langle" else opening + closing, items)
        return None
    items = [item for item in split(answer, _COMMA) if item]
    items = _signs(items) if number(quantity(answer)[0]) is None else [answer]
    return _Listing("list", "", _without_common_label(items)) if len(items) > 1 else None


def _signs(items: Sequence[str]) -> list[str]:
    r"""Items with ``\pm`` as the two that they stand for."""
    both: list[str] = []
    for item in items:
        chosen = [item.replace("\\pm", sign) for sign in "+-"] if item.count("\\pm") == 1 else [item]
        both += [re.sub(r"(^|=)\s*\+", r"\1", one.strip()) for one in chosen]
    return both


def _without_common_label(items: Sequence[str]) -> list[str]:
    """``x = 1, x = 2`` and ``x = 1, 2`` as ``1, 2``."""
    parts = [split(item, _EQUALS) for item in items]
    labels = {looks(part[0]) for part in parts if len(part) == 2 and _LABEL.fullmatch(part[0])}
    if len(labels) != 1 or any(len(part) > 2 for part in parts) or len(parts[0]) != 2:
        return list(items)
    named = sum(len(part) == 2 for part in parts)
    return [part[-1] for part in parts] if named in (1, len(parts)) else list(items)


def _labels(listing: _Listing) -> dict[str, str]:
    """The values by name where every item names another; empty elsewhere."""
    parts = [split(item, _EQUALS) for item in listing.items]
    if any(len(part) != 2 or not _LABEL.fullmatch(part[0]) for part in parts):
        return {}
    named = {looks(part[0]): part[1] for part in parts}
    return named if len(named) == len(parts) else {}


def _same_interval(one: Interval, other: Interval) -> bool:
    if one.variable and other.variable and one.variable != other.variable:
        return False
    return one.brackets == other.brackets and all(
        one_end == other_end if "oo" in (one_end.strip("-"), other_end.strip("-")) else _same(one_end, other_end)
        for one_end, other_end in zip(one.ends, other.ends, strict=True)
    )


def _matched(one: Sequence[_T], other: Sequence[_T], same: Callable[[_T, _T], bool]) -> bool:
    """Whether the items are equal in some order. Equality is transitive, so the first fitting one will do."""
    if len(one) != len(other):
        return False
    left = list(other)
    for item in one:
        place = next((i for i, candidate in enumerate(left) if same(item, candidate)), None)
        if place is None:
            return False
        del left[place]
    return True


def _covers(one: Sequence[str], other: Sequence[str]) -> bool:
    return all(any(_same(item, candidate) for candidate in other) for item in one)


def _hundredth(value: str) -> str:
    exact = number(value)
    return f"\\frac{{{value}}}{{100}}" if exact is None else str(exact / 100)


def _radians(value: str) -> str:
    return f"\\frac{{\\pi \\cdot ({value})}}{{180}}"
