"""Conditions on a table's rows, such as ``lr>=1e-3,arch=[64, 64]``."""

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import pandas as pd

from loptune.errors import ConfigError

Operator = Literal["=", "!=", "<", "<=", ">", ">="]

_CONDITION = re.compile(r"(?P<column>.+?)\s*(?P<operator>!=|<=|>=|==|=|<|>)\s*(?P<value>.*)", re.S)
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Condition:
    """A comparison of a column with a value."""

    column: str
    operator: Operator
    value: str

    def __str__(self) -> str:
        """Return the condition as `conditions` reads it."""
        is_plain = split_list(self.value) == [self.value]
        value = self.value if is_plain else f'"{self.value}"'
        return f"{self.column}{self.operator}{value}"

    def holds(self, values: "pd.Series[Any]") -> "pd.Series[bool]":
        """Return for each row whether the condition is true.

        Raises:
            ConfigError: an order comparison with a value that is not a number.
        """
        if self.operator in ("=", "!="):
            same = values.map(lambda value: equal(value, self.value))
            return same if self.operator == "=" else ~same
        compare = _ORDERS[self.operator]
        limit = _number(self.value)
        if limit is None:
            raise ConfigError(
                f"{self.value} is not a number, so {self.operator} cannot compare with it",
                self.column,
                "use = or != for words",
                code="not-a-number",
            )
        numbers = values.map(_number)
        return numbers.map(lambda number: number is not None and compare(number, limit))


def equal(value: Any, text: Any) -> bool:
    """Return whether a cell equals a value as typed: numbers by value, lists without regard to
    spaces, True equals true. A blank cell equals ``none``, ``nan`` and the empty string.
    """
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return str(text).strip().lower() in ("", "none", "nan")
    number = _number(value)
    typed = _number(text)
    if number is not None and typed is not None:
        return number == typed or math.isclose(number, typed, rel_tol=1e-9)
    return _plain(value) == _plain(text)


def split_list(text: str) -> list[str]:
    """Return the items of a comma-separated list. Commas in brackets or quotes do not separate."""
    items = []
    start = 0
    waiting: list[str] = []  # expected closing brackets
    quote = ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and (place == start or text[place - 1] in "= <>,"):
            quote = character
        elif character in _PAIRS:
            waiting.append(_PAIRS[character])
        elif waiting and character == waiting[-1]:
            waiting.pop()
        elif character == "," and not waiting:
            items.append(text[start:place])
            start = place + 1
    items.append(text[start:])
    if waiting or quote:  # a bracket or quote without a partner is part of a name
        items = text.split(",")
    return [_unquoted(item) for item in items if item.strip()]


def conditions(text: str) -> list[Condition]:
    """Return the comma-separated conditions of a command line.

    Raises:
        ConfigError: an item is not a condition, or a column would have to equal two values.
    """
    parsed: list[Condition] = []
    for item in split_list(text):
        match = _CONDITION.fullmatch(item)
        if match is None:
            raise ConfigError(
                f"{item} is not COLUMN=VALUE",
                "command line",
                "write COLUMN=VALUE, such as loss=grpo; COLUMN!=VALUE, <, <=, > and >= work too",
                code="not-a-condition",
            )
        name = cast(Operator, match["operator"].replace("==", "="))
        condition = Condition(_unquoted(match["column"]), name, _unquoted(match["value"]))
        if name == "=" and any(
            other.column == condition.column and other.operator == "=" for other in parsed
        ):
            raise ConfigError(
                f"{item} is a second value for {condition.column}",
                "command line",
                f"use {condition.column} only once",
                code="second-value",
            )
        parsed.append(condition)
    return parsed


def equalities(text: str) -> dict[str, str]:
    """Return comma-separated COLUMN=VALUE items as a mapping.

    Raises:
        ConfigError: see `conditions`; also for comparisons other than ``=``.
    """
    pairs = {}
    for condition in conditions(text):
        if condition.operator != "=":
            raise ConfigError(
                f"{condition.column}{condition.operator}{condition.value} is not COLUMN=VALUE",
                "command line",
                "use = and a single value",
                code="not-a-condition",
            )
        pairs[condition.column] = condition.value
    return pairs


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number


def _plain(value: Any) -> str:
    text = str(value).strip()
    if text.startswith(tuple(_PAIRS)):
        text = re.sub(r"\s|[\"']", "", text)
    return text.lower() if text.lower() in ("true", "false") else text


def _unquoted(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text
