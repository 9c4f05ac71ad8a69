"""Display names of parameters and their values, for tables, tags and legends."""

from collections import Counter
from collections.abc import Sequence
from typing import Any


def short_name(parameter: str) -> str:
    """Return the last part of a dotted key, or its section if the last part is just ``name``."""
    *_, section, last = ["", *parameter.split(".")]
    return section if last == "name" and section else last


def short_names(parameters: Sequence[str]) -> dict[str, str]:
    """Map each parameter to its short name, or to its full name if short names collide."""
    count = Counter(map(short_name, parameters))
    return {name: name if count[short_name(name)] > 1 else short_name(name) for name in parameters}


def shown(value: Any) -> str:
    """Format a parameter value for display."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
