r"""Reading the notation of an answer: marks without meaning, brackets, numerals, units.

Everything here is text in, text or exact number out; nothing is evaluated.
"""

import itertools
import re
from fractions import Fraction

_CHARACTERS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": r"\div ",
        "π": r"\pi ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "°": r"^\circ",
        "∅": r"\emptyset ",
        "∪": r"\cup ",
        "±": r"\pm ",
        "∈": r"\in ",
        "ℝ": r"\mathbb{R}",
        "…": r"\ldots",
        "²": "^2",
        "³": "^3",
        "\u00a0": " ",
        "\n": " ",
    }
)
_MARKS = (
    (re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![A-Za-z])"), ""),
    (re.compile(r"(?<!\\)\\[!,;:]"), ""),
    (re.compile(r"\\(?:quad|qquad)(?![A-Za-z])|(?<!\\)\\ |~"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:mathrm|text)\{([ei])\}"), r"\1"),
    (re.compile(r"\\(?:mathrm|textbf|textit|textrm|textnormal|mbox|operatorname|rm)\s*\{"), r"\\text{"),
    (re.compile(r"\\(?:mathbf|boldsymbol|mathit|vec|boxed|fbox)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\(?:leq|leqslant|leqq)(?![A-Za-z])|<="), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant|geqq)(?![A-Za-z])|>="), r"\\ge "),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\neq(?![A-Za-z])|!="), r"\\ne "),
    (re.compile(r"\\(?:dots|cdots|dotsc|dotsb)(?![A-Za-z])|\.\.\."), r"\\ldots"),
    (re.compile(r"\\log_\{?e\}?(?![A-Za-z])"), r"\\ln "),
    (re.compile(r"\\degree(?![A-Za-z])|\^\{\s*\\circ\s*\}"), r"^\\circ"),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])|\\\{\s*\\\}"), r"\\emptyset "),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\d)\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"(\\frac\{[^{}]*\})\s*(\d)"), r"\1{\2}"),
    (re.compile(r"\\sqrt\s*(\d)"), r"\\sqrt{\1}"),
)
_ENCLOSED = re.compile(r"\\\((.*)\\\)|\\\[(.*)\\\]", re.DOTALL)
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_OPEN, _CLOSE = "([{", ")]}"

_INTEGER = r"\d{1,3}(?:,\d{3})+|\d{1,400}"
_REPEATING = r"\\(?:overline|bar|dot)(?:\{(\d{1,50})\}|(\d))"
_DECIMAL = re.compile(rf"(?:({_INTEGER})?\.(\d{{0,400}})(?:{_REPEATING})?|({_INTEGER})\.?)")
_POWER_OF_TEN = re.compile(r"(?:(?<=\d)[eE]|(?:\\times|\\cdot|\*|^)10\^)(?:\{([+-]?\d{1,3})\}|([+-]?\d{1,3}))")
_FRACTION = re.compile(r"(\d{1,50})?\\frac\{([+-]?\d{1,400})\}\{([+-]?\d{1,400})\}")
_MIXED = re.compile(r"(\d{1,50}) +(\d{1,50})/(\d{1,50})")

# Units that cannot be taken for each other; any other words after a number are what is counted.
_MEASURES = (
    ("mm", "millimeter", "millimetre"),
    ("cm", "centimeter", "centimetre"),
    ("m", "meter", "metre"),
    ("km", "kilometer", "kilometre"),
    ("in", "inch", "inches"),
    ("ft", "foot", "feet"),
    ("yd", "yard"),
    ("mi", "mile"),
    ("mg", "milligram"),
    ("g", "gram"),
    ("kg", "kilogram"),
    ("lb", "pound"),
    ("oz", "ounce"),
    ("ml", "milliliter", "millilitre"),
    ("l", "liter", "litre"),
    ("s", "sec", "second"),
    ("min", "minute"),
    ("h", "hr", "hour"),
    ("day",),
    ("week",),
    ("month",),
    ("year", "yr"),
    ("$", "dollar", "usd"),
    ("cent", "¢"),
    ("€", "euro"),
    ("£", "pound sterling"),
    ("mph", "miles per hour", "mi/h"),
    ("km/h", "kmh", "kph", "kilometers per hour"),
    ("m/s", "meters per second"),
    ("hz", "hertz"),
    ("n", "newton"),
    ("j", "joule"),
    ("w", "watt"),
    ("v", "volt"),
    ("k", "kelvin"),
    ("rad", "radian"),
    ("%", "percent"),
    ("degree", "deg", r"^\circ"),
)
_CANONICAL = {name: names[0] for names in _MEASURES for name in names}
_NO_UNIT = re.compile(r"\b(?:or|and|not|to|than|no|if|where|when|for)\b", re.IGNORECASE)
_UNIT_WORDS = r"[A-Za-z$%/².\s-]*[A-Za-z.]"
_UNIT = re.compile(
    r"(?P<value>.*[\d)}a-z])\s*(?:"
    r"(?P<sign>\\?%|\^\\circ(?:\s*[CF])?)|"
    rf"\\text\{{\s*(?P<text>{_UNIT_WORDS})\s*\}}(?:\s*\^\{{?\d\}}?)?|"
    rf"(?P<word>(?<=[^A-Za-z\\])(?:[A-Za-z]+/)?[A-Za-z]+(?: [A-Za-z]+)*)(?:\s*\^\{{?\d\}}?)?"
    r")\s*\.?",
    re.DOTALL,
)
_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_CURRENCY = re.compile(r"\s*(\\?\$|£|€|\\text\{\s*(?:\\?\$|USD)\s*\})\s*(?=[\d.])")


def tidy(answer: str) -> str:
    r"""The answer without marks that change only its looks, commands of one meaning by one name.

    Words stay in ``\text{...}``: they are told from products of symbols by it.
    """
    answer = answer.strip().translate(_CHARACTERS)
    enclosed = _ENCLOSED.fullmatch(answer)
    if enclosed:
        answer = next(part for part in enclosed.groups() if part is not None)
    answer = re.sub(r"(?<!\\)\$", "", answer)
    for pattern, replacement in _MARKS:
        answer = pattern.sub(replacement, answer)
    answer = re.sub(r"\s+", " ", answer).strip()
    whole = _TEXT.fullmatch(answer)
    if whole and re.search(r"[\d,]", whole[1]):
        answer = whole[1]  # "18 ways" is no word, "Ava, Ben" are two
    return answer.rstrip(".").strip()


def without_text(answer: str) -> str:
    r"""The answer with what ``\text{...}`` holds in its place."""
    return _TEXT.sub(r"\1", answer).strip()


def looks(answer: str) -> str:
    """The text of an answer without spaces and case, for comparison."""
    return re.sub(r"[\s$]+", "", without_text(answer)).rstrip(".").casefold()


def nesting(answer: str) -> int:
    """The depth to which brackets are nested."""
    return max(_depths(answer))


def _depths(answer: str) -> list[int]:
    """How many brackets are open, before the first character and after each."""
    return list(itertools.accumulate(((one in _OPEN) - (one in _CLOSE) for one in answer), initial=0))


def split(answer: str, separator: re.Pattern[str]) -> list[str]:
    """The parts between separators that stand in no bracket."""
    last, parts = 0, []
    places = {match.start(): match.end() for match in separator.finditer(answer)}
    for position, depth in enumerate(_depths(answer)[1:]):
        if depth <= 0 and position >= last and position in places and places[position] > position:
            parts.append(answer[last:position].strip())
            last = places[position]
    return [*parts, answer[last:].strip()]


def inside(answer: str) -> tuple[str, str, str] | None:
    """Opening bracket, content and closing bracket where one pair encloses the whole answer."""
    for opening, closing in (("\\{", "\\}"), ("\\langle", "\\rangle"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")):
        if not (answer.startswith(opening) and answer.endswith(closing)):
            continue
        content = answer[len(opening) : -len(closing)]
        depths = _depths(content)
        return (opening, content.strip(), closing) if min(depths) == depths[-1] == 0 else None
    return None


def number(answer: str) -> Fraction | None:
    r"""The exact value of a numeral, None for anything else.

    Integers with or without thousands separators, decimals (also repeating ones: ``0.1\overline{6}``), powers of
    ten (``1e-7``, ``3 \times 10^{5}``), fractions and mixed numbers.
    """
    text = answer.strip()
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-").strip() if text[:1] in ("+", "-") else text
    mixed = _MIXED.fullmatch(text)
    if mixed:
        return _ratio(sign, *mixed.groups())
    text = re.sub(r"(?<=\d) (?=\d{3}\b)", "", text).replace(" ", "")
    fraction = _FRACTION.fullmatch(text)
    if fraction:
        return _ratio(sign, *fraction.groups())
    if text.count("/") == 1:
        over, under = (_decimal(part) for part in text.split("/"))
        return sign * over / under if over is not None and under else None
    power = _POWER_OF_TEN.search(text)
    if power and power.end() == len(text):
        factor = _decimal(text[: power.start()] or "1")
        return None if factor is None else sign * factor * Fraction(10) ** int(power[1] or power[2])
    value = _decimal(text)
    return None if value is None else sign * value


def quantity(answer: str) -> tuple[str, str]:
    r"""Value and unit, the unit empty where there is none.

    The unit is a percent or degree sign, a currency, or the words after a number: ``5 \text{ cm}``, ``18 ways``.
    """
    currency = _CURRENCY.match(answer)
    if currency:
        unit = without_text(currency[1]).strip("\\ ").casefold()
        return answer[currency.end() :].strip(), _CANONICAL.get(unit, unit)
    match = _UNIT.fullmatch(answer)
    if not match or not re.search(r"\d|\\pi|\\sqrt", match["value"]) or _FUNCTION.search(match["value"]):
        return answer, ""
    words = match["sign"] or match["text"] or match["word"]
    unit = re.sub(r"\s+", " ", words.replace("\\%", "%").strip(" .-")).casefold()
    singular = unit if unit in _CANONICAL else unit.removesuffix("s")
    known = _CANONICAL.get(singular, "")
    if match["word"] and not (known and (len(unit) > 1 or " " + words in answer)) and not _is_counted(match):
        return answer, ""
    if match["text"] and (_NO_UNIT.search(unit) or (len(unit) == 1 and not known)):
        return answer, ""
    return match["value"].strip(), known or unit


def different_units(one: str, other: str) -> bool:
    """Whether both are units of which the one can never stand for the other."""
    measures = set(_CANONICAL.values())
    return one != other and one in measures and other in measures


def _is_counted(match: re.Match[str]) -> bool:
    words = match["word"].split()
    apart = match.string[match.end("value") : match.start("word")] == " "
    return apart and max(map(len, words)) >= 4 and not _NO_UNIT.search(match["word"])


def _ratio(sign: int, whole: str | None, over: str, under: str) -> Fraction | None:
    if int(under) == 0 or (whole and (int(over) < 0 or int(under) < 0)):
        return None
    return sign * (int(whole or 0) + Fraction(int(over), int(under)))


def _decimal(text: str) -> Fraction | None:
    match = _DECIMAL.fullmatch(text)
    if not match:
        return None
    before, after, repeated, repeated_digit, integer = match.groups()
    if integer is not None:
        return Fraction(integer.replace(",", ""))
    repeated = repeated or repeated_digit
    if before is None and not after and not repeated:
        return None
    value = Fraction(f"{(before or '0').replace(',', '')}.{after or '0'}")
    if repeated:
        value += Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(after))
    return value
