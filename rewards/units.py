r"""Units after numbers, which math-verify drops: 5 m and 5 cm would be equal."""

import re

_SPELLINGS = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inche",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "mg": "milligram",
    "g": "gram",
    "kg": "kilogram",
    "lb": "lbs pound",
    "oz": "ounce",
    "ml": "mL milliliter millilitre",
    "l": "L liter litre",
    "ms": "millisecond",
    "s": "sec second",
    "min": "minute",
    "h": "hr hour",
    "d": "day",
    "degree": "deg",
    "rad": "radian",
    "percent": "percentage",
    "dollar": "USD bucks",
    "cent": "¢",
    "mph": "mi/h",
    "km/h": "kph kmh kmph",
}
_CANONICAL = {
    spelling: unit
    for unit, spellings in _SPELLINGS.items()
    for spelling in (unit, *spellings.split())
}
# units that are written without a space; other units could be products of symbols
_GLUED = frozenset(
    ("mm", "cm", "km", "m", "kg", "mg", "mL", "ml", "mph", "min", "ft", "in", "cents")
)
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}
_ONE_LETTER_UNITS = frozenset("mgslhLNJWVAKCF")
# words after a number that belong to the formula
_NO_UNITS = frozenset(("and", "or", "to", "mod", "pi", "sqrt", "inf", "infty", "i", "e", "x", "y"))
# words that stand for a unit without naming it
_ANY_UNIT = frozenset(("unit", "unit^2", "unit^3", "way"))


def is_unit(words: str) -> bool:
    """Return whether words after a number and a space are a unit, not part of the formula."""
    return words not in _NO_UNITS and (len(words) > 1 or words in _ONE_LETTER_UNITS)


def is_glued_unit(word: str) -> bool:
    """Return whether a word right after a digit is a unit."""
    return word in _GLUED


def canonical_unit(text: str) -> str:
    """Return the canonical spelling of a unit: ``cm^2`` for ``square centimeters``. Empty for a
    word that names no specific unit, such as ``units``.
    """
    words = re.sub(r"\^?\{?\^?([23])\}?", r"^\1", text.replace("~", " ").strip(" ."))
    words = words.replace("²", "^2").replace("³", "^3")
    words = re.sub(r"\s*(?:\bper\b|/)\s*", "/", words)
    units = [_canonical_word(part) for part in words.split("/")]
    unit = "/".join(units)
    unit = _CANONICAL.get(unit, unit)
    return "" if unit in _ANY_UNIT else unit


def _canonical_word(text: str) -> str:
    words = text.split()
    power = _POWERS.get(words[0].lower().rstrip("."), "") if len(words) > 1 else ""
    if power:
        words = words[1:]
    if words and words[-1].lower() in ("squared", "cubed") and len(words) > 1:
        power = {"squared": "^2", "cubed": "^3"}[words.pop().lower()]
    name, mark, exponent = " ".join(words).partition("^")
    name = name.strip()
    for spelling in (name, name.lower(), name.lower().removesuffix("s")):
        if spelling in _CANONICAL:
            name = _CANONICAL[spelling]
            break
    else:
        name = name.lower()
        if len(name) > 2:  # shorter names have no plural
            name = name.removesuffix("s")
    return name + (mark + exponent or power)
