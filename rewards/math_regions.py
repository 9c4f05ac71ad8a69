r"""Sets of real numbers as pieces between two ends: ``[0, 1)``, ``x < 2``, ``x \ne 3``, unions of such."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rewards.math_notation import inside, looks, split

RELATION = re.compile(r"\\(?:le|ge|ne)(?![A-Za-z])|<|>")
_COMMA = re.compile(",")
_CUP = re.compile(r"\\cup(?![A-Za-z])|\\text\{\s*or\s*\}|(?<![A-Za-z\\])or(?![A-Za-z])|[,;]")
_AND = re.compile(r"\\text\{\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z])|\\(?:land|wedge)(?![A-Za-z])")
_MEMBER = re.compile(r"([a-z])\s*\\in(?![A-Za-z])\s*(.*)", re.DOTALL)
_BUILDER = re.compile(r"\\\{\s*([a-z])\s*(?:\\in\s*\\mathbb\{R\}\s*)?(?:\\mid|:|\|)\s*(.*)\\\}", re.DOTALL)
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "\\ne": "\\ne"}
_ALL_REALS = (r"\mathbb{r}", r"\mathbb{r}.", "allrealnumbers", "allreals")


@dataclass(frozen=True)
class Interval:
    """``-oo`` and ``oo`` are the ends of what has none."""

    variable: str
    brackets: str
    ends: tuple[str, str]


def intervals(answer: str) -> list[Interval] | None:
    """The pieces of a set of real numbers, None where the answer is not one."""
    if looks(answer) in _ALL_REALS:
        return [Interval("", "()", ("-oo", "oo"))]
    built = _BUILDER.fullmatch(answer)
    if built:
        return intervals(built[2])
    member = _MEMBER.fullmatch(answer)
    if member:
        return intervals(member[2])
    bounds = [_related(part) for part in split(answer, _AND)]
    if len(bounds) == 2 and all(bounds):
        return _between(*(piece for found in bounds for piece in found or []))
    pieces: list[Interval] = []
    for part in split(answer, _CUP):
        found = _related(part) if RELATION.search(part) else _bracketed(part)
        if found is None:
            return None
        pieces += found
    return pieces


def _between(*pieces: Interval) -> list[Interval] | None:
    """The interval between a lower and an upper bound."""
    below = [piece for piece in pieces if piece.ends[0] == "-oo"]
    above = [piece for piece in pieces if piece.ends[1] == "oo"]
    if len(pieces) != 2 or len(below) != 1 or len(above) != 1 or below[0].variable != above[0].variable:
        return None
    brackets = above[0].brackets[0] + below[0].brackets[1]
    return [Interval(below[0].variable, brackets, (above[0].ends[0], below[0].ends[1]))]


def _bracketed(part: str) -> list[Interval] | None:
    enclosed = inside(part)
    if enclosed is None or enclosed[0] not in "([":
        return None
    ends = split(enclosed[1], _COMMA)
    return [Interval("", enclosed[0] + enclosed[2], (_end(ends[0]), _end(ends[1])))] if len(ends) == 2 else None


def _related(part: str) -> list[Interval] | None:
    r"""``x < 2``, ``2 > x``, ``0 \le x < 1`` or ``x \ne 3``."""
    sides = [side.strip() for side in RELATION.split(part)]
    signs = [sign.strip() for sign in RELATION.findall(part)]
    if len(sides) not in (2, 3):
        return None
    if len(sides) == 2 and re.fullmatch(r"[A-Za-z]", sides[1]):
        sides, signs = sides[::-1], [_FLIPPED[signs[0]]]
    if len(sides) == 3 and set(signs) <= {">", "\\ge"}:
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in signs[::-1]]
    variable = sides[0] if len(sides) == 2 else sides[1]
    others = [side for side in sides if side is not variable]
    if not re.fullmatch(r"[A-Za-z]", variable) or not all(others) or _mentions(variable, others):
        return None
    if len(sides) == 3:
        if not set(signs) <= {"<", "\\le"}:
            return None
        brackets = ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
        return [Interval(variable, brackets, (_end(sides[0]), _end(sides[2])))]
    below = Interval(variable, "(" + ("]" if signs[0] == "\\le" else ")"), ("-oo", _end(sides[1])))
    above = Interval(variable, ("[" if signs[0] == "\\ge" else "(") + ")", (_end(sides[1]), "oo"))
    return {"<": [below], "\\le": [below], ">": [above], "\\ge": [above], "\\ne": [below, above]}[signs[0]]


def _mentions(variable: str, sides: Sequence[str]) -> bool:
    return any(variable in re.findall(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])", side) for side in sides)


def _end(text: str) -> str:
    plain = text.replace(" ", "")
    return {"\\infty": "oo", "+\\infty": "oo", "-\\infty": "-oo"}.get(plain, text.strip())
