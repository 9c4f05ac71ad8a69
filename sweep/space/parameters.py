"""Parameters of a search space: their ranges and conditions."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from trainer.section import Section


def same_value(left: Any, right: Any) -> bool:
    """Return whether two values are equal; ``true`` and 1 differ."""
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


ValueMapping = dict[str, Any]
_FloatRange = tuple[float, float]
_IntegerRange = Annotated[list[int], Field(min_length=2, max_length=3)]

KINDS = ("choice", "uniform", "loguniform", "int", "value", "by")
_LISTED = ("choice", "value", "by")  # kinds that list their values
_MOST_VALUES = 100_000  # largest integer range that is enumerated


class ParameterSpec(Section):
    """One parameter: exactly one kind of range, and the condition under which it is searched."""

    choice: list[Any] | None = Field(None, min_length=1)
    """one of these values"""
    uniform: _FloatRange | None = None
    """[low, high]"""
    loguniform: _FloatRange | None = None
    """[low, high], uniform in the logarithm"""
    integer: _IntegerRange | None = Field(None, alias="int")
    """[low, high] or [low, high, step]"""
    value: Any = None
    """always this value"""
    by: dict[str, dict[Any, Any]] | None = None
    """{other: {its value: value}}: a constant for each value of another parameter"""
    when: ValueMapping = Field({})
    """active only where these parameters have these values (or one of a list)"""
    otherwise: Any = Field(None, alias="else")
    """value while inactive (default: the trainer preset's)"""

    @property
    def kind(self) -> str:
        """The one of ``KINDS`` that is set."""
        return next(kind for kind in KINDS if _field(kind) in self.model_fields_set)

    @property
    def has_otherwise(self) -> bool:
        """Whether ``else:`` is set (its value may be null)."""
        return "otherwise" in self.model_fields_set

    @property
    def bounds(self) -> tuple[float, float, float | None]:
        """Low, high and step (None if continuous) of a numeric range."""
        numbers: Sequence[float] = getattr(self, _field(self.kind))
        if self.kind == "int":
            return numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 1
        return numbers[0], numbers[1], None

    @property
    def options(self) -> list[Any] | None:
        """All possible values, or None for a range that is not enumerated."""
        if self.kind == "choice":
            return list(self.choice or [])
        if self.kind == "value":
            return [self.value]
        if self.kind == "by":
            return [value for values in (self.by or {}).values() for value in values.values()]
        if self.kind == "int":
            low, high, step = self.bounds
            return list(range(int(low), int(high) + 1, int(step or 1)))
        return None

    @property
    def extremes(self) -> list[Any]:
        """Values to validate: every choice, or both ends of the range."""
        if self.kind in _LISTED:
            return self.options or []
        low, high, _ = self.bounds
        return [int(low), int(high)] if self.kind == "int" else [low, high]

    def contains(self, value: Any) -> bool:
        """Return whether a value lies in the range."""
        options = self.options
        if options is not None:
            return any(same_value(value, option) for option in options)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        low, high, _ = self.bounds
        return low <= value <= high

    def given(self, point: Mapping[str, Any]) -> "ParameterSpec":
        """Return the parameter for a partly chosen point; a `by` becomes the constant for it."""
        if self.by is None:
            return self
        parent, values = next(iter(self.by.items()))
        return ParameterSpec(value=values[point[parent]])

    @model_validator(mode="before")
    @classmethod
    def _read_by(cls, data: Any) -> Any:
        """Turn `by` into a condition: the parameter is active if the other has one of the listed
        values.
        """
        by = data.get("by") if isinstance(data, dict) else None
        if not isinstance(by, dict):
            return data
        listed = {parent: list(values) for parent, values in by.items() if isinstance(values, dict)}
        return {**data, "when": {**(data.get("when") or {}), **listed}}

    @model_validator(mode="after")
    def _check(self) -> "ParameterSpec":
        written = [kind for kind in KINDS if _field(kind) in self.model_fields_set]
        if len(written) != 1:
            listed = f"found {' and '.join(written)}" if written else "found none"
            raise ValueError(f"set exactly one of {', '.join(KINDS)}; {listed}")
        if self.has_otherwise and not self.when:
            raise ValueError("`else` needs a `when`")
        if self.by is not None and (len(self.by) != 1 or not all(self.by.values())):
            raise ValueError(
                "`by` needs one other parameter and some of its values: {other: {its value: value}}"
            )
        if self.kind == "choice":
            _check_choice(self.choice or [])
        elif self.kind not in _LISTED:
            _check_bounds(self.kind, *self.bounds)
        return self


def _field(kind: str) -> str:
    return "integer" if kind == "int" else kind


def _check_choice(values: Sequence[Any]) -> None:
    for index, value in enumerate(values):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"choice contains {value}, which is not finite")
        # `1` and `true` are the same choice to Optuna as well, so plain equality is meant here.
        if value in values[:index]:
            raise ValueError(f"choice lists {value!r} twice")


def _check_bounds(kind: str, low: float, high: float, step: float | None) -> None:
    if not low < high:
        raise ValueError(f"{kind}: low {low} must be below high {high}")
    if kind.startswith("log") and low <= 0:
        raise ValueError(f"{kind}: low {low} must be above 0 on a logarithmic scale")
    if step is not None and not 0 < step <= high - low:
        raise ValueError(f"{kind}: step {step} must be above 0 and at most high - low")
    if step is not None and (high - low) / step > _MOST_VALUES:
        raise ValueError(f"{kind}: more than {_MOST_VALUES:,} values: write a larger step")
