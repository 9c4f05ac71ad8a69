"""What is wrong with a value of the configuration, in words."""

from collections.abc import Mapping
from typing import Any

_BOUNDS = {
    "greater_than": "above",
    "greater_than_equal": "at least",
    "less_than": "below",
    "less_than_equal": "at most",
}
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string_type": "text",
    "string_pattern": "an address, http://HOST:PORT",
    "invalid_key": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping of names to values",
    "model": "a mapping of keys",
}


def refusal(key: str, error: Mapping[str, Any], shown: bool = True) -> str:
    """A sentence on one of pydantic's errors; ``shown`` quotes the value."""
    kind, context, given = error["type"], error.get("ctx") or {}, error.get("input")
    if kind == "missing":
        return f"{key} is missing"
    got = f", got {_text(given)}" if shown and isinstance(given, str | int | float | bool | None) else ""
    if kind in _BOUNDS:
        bound = next(value for name, value in context.items() if name in ("gt", "ge", "lt", "le"))
        return f"{key} must be {_BOUNDS[kind]} {bound:g}{got}"
    if kind == "literal_error":
        return f"{key} must be one of {context['expected'].replace(' or ', ', ')}{got}"
    if kind.endswith(("too_short", "too_long")):
        least = kind.endswith("short")
        count = context["min_length" if least else "max_length"]
        unit = "character" if kind.startswith("string") else "value"
        return f"{key} must have at {'least' if least else 'most'} {count} {unit}{'s' * (count != 1)}{got}"
    for start, wanted in _KINDS.items():
        if kind == start or kind.startswith(f"{start}_"):
            return f"{key} must be {wanted}{got}"
    message = error["msg"].removeprefix("Value error, ")
    return f"{key}: {message}{got.replace(', got', ', not')}" if key else message


def _text(value: object) -> str:
    """A value as YAML writes it."""
    return str(value).lower().replace("none", "null") if value is None or isinstance(value, bool) else repr(value)
