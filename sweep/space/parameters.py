"""Parameters of a search space: their ranges and conditions."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, model_validator

from loptune.section import Section, refusal
from sweep.space.other_tools import our_form


def same_value(left: Any, right: Any) -> bool:
    """Return whether two values are equal; ``true`` and 1 differ."""
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


ValueMapping = dict[str, Any]
_FloatRange = Annotated[list[float], Field(min_length=2, max_length=2)]
_SteppedRange = Annotated[list[float], Field(min_length=3, max_length=3)]
_IntegerRange = Annotated[list[int], Field(min_length=2, max_length=3)]
_LogIntegerRange = Annotated[list[int], Field(min_length=2, max_length=2)]

KINDS = ("choice", "uniform", "quniform", "loguniform", "int", "logint", "value", "by")
_LISTED = ("choice", "value", "by")  # kinds with explicit values
_MAX_VALUES = 100_000  # maximum number of values in a range with a step


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The bounds of a numeric range, both included."""

    low: float
    high: float
    step: float | None  # None if the range is continuous


class ParameterSpec(Section):
    """A parameter: exactly one kind of range, and the condition under which it is searched."""

    choice: list[Any] | None = Field(None, min_length=1)
    """one of these values"""
    uniform: _FloatRange | None = None
    """[low, high]"""
    quniform: _SteppedRange | None = None
    """[low, high, step]: low, low + step, and so on"""
    loguniform: _FloatRange | None = None
    """[low, high], log-uniform"""
    integer: _IntegerRange | None = Field(None, alias="int")
    """[low, high] or [low, high, step], integers"""
    logint: _LogIntegerRange | None = None
    """[low, high], log-uniform integers"""
    value: Any = None
    """always this value"""
    by: dict[str, dict[Any, Any]] | None = None
    """{OTHER: {ITS VALUE: VALUE}}: a constant for each value of another parameter"""
    when: ValueMapping = Field({})
    """active only if these parameters have these values (or a value in the list)"""
    otherwise: Any = Field(None, alias="else")
    """value while inactive (default: the value in the trainer preset)"""

    @property
    def kind(self) -> str:
        """The kind of range, one of ``KINDS``."""
        return self._kinds[0]

    @property
    def _kinds(self) -> list[str]:
        return [kind for kind in KINDS if _field(kind) in self.model_fields_set]

    @property
    def has_else(self) -> bool:
        """Whether ``else:`` is set (its value may be null)."""
        return "otherwise" in self.model_fields_set

    @property
    def bounds(self) -> Bounds:
        """The bounds of a numeric range."""
        numbers: Sequence[float] = getattr(self, _field(self.kind))
        low, high = numbers[0], numbers[1]
        step: float | None = None
        if len(numbers) == 3:
            step = numbers[2]
        elif self.is_integer:
            step = 1
        return Bounds(low=low, high=high, step=step)

    @property
    def is_integer(self) -> bool:
        """Whether a numeric range contains only integers."""
        return self.kind in ("int", "logint")

    @property
    def options(self) -> list[Any] | None:
        """All possible values, or None for a continuous or too large range."""
        if self.kind == "choice":
            return list(self.choice or [])
        if self.kind == "value":
            return [self.value]
        if self.kind == "by":
            constants: list[Any] = []
            for by_value in (self.by or {}).values():
                constants += by_value.values()
            return constants
        bounds = self.bounds
        if bounds.step is None:
            return None
        if self.is_integer:
            values = range(int(bounds.low), int(bounds.high) + 1, int(bounds.step))
            return list(values) if len(values) <= _MAX_VALUES + 1 else None
        return _stepped(bounds.low, bounds.high, bounds.step)

    @property
    def extremes(self) -> list[Any]:
        """Values to validate: every choice, or the first and the last value of the range."""
        if self.kind in _LISTED:
            return self.options or []
        options = self.options
        if options is not None:
            return [options[0], options[-1]]
        bounds = self.bounds
        if self.is_integer:
            return [int(bounds.low), int(bounds.high)]
        return [bounds.low, bounds.high]

    def contains(self, value: Any) -> bool:
        """Return whether a value is in the range."""
        options = self.options
        if options is not None:
            return any(same_value(value, option) for option in options)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not math.isfinite(value):
            return False
        if self.is_integer and value != int(value):
            return False
        return self.bounds.low <= value <= self.bounds.high

    def given(self, point: Mapping[str, Any]) -> "ParameterSpec":
        """Return the parameter for a partial point, with a `by` replaced by its constant."""
        if self.by is None:
            return self
        parent, values = next(iter(self.by.items()))
        return ParameterSpec(value=values[point[parent]])

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        """Reject the syntax of other tools, and turn `by` into a condition: the parameter is active
        if the other parameter has one of the listed values.
        """
        if isinstance(data, ParameterSpec):
            return data
        _check_words(data)
        by = data.get("by")
        if not isinstance(by, dict):
            return data
        when = dict(data.get("when") or {})
        for parent, values in by.items():
            if isinstance(values, dict):
                when[parent] = list(values)
        return {**data, "when": when}

    @model_validator(mode="after")
    def _check(self) -> "ParameterSpec":
        if len(self._kinds) != 1:
            found = " and ".join(self._kinds) or "none"
            raise refusal(
                "one-range", f"set exactly one of {', '.join(KINDS)}; found {found}", _NEEDS_A_RANGE
            )
        if self.has_else and not self.when:
            raise refusal("else-without-when", "`else` needs a `when`", "add when: {OTHER: VALUE}")
        if self.by is not None and (len(self.by) != 1 or not all(self.by.values())):
            raise refusal(
                "invalid-by",
                "`by` needs one other parameter and some of its values",
                "write by: {OTHER: {ITS VALUE: VALUE}}",
            )
        if self.kind == "choice":
            _check_choice(self.choice or [])
        elif self.kind not in _LISTED:
            _check_bounds(self.kind, self.bounds)
        return self


_NEEDS_A_RANGE = "write one range, such as {uniform: [0.0, 0.5]} or {choice: [a, b]}"


def _check_words(data: Any) -> None:
    """Reject values that are not mappings, and the syntax of W&B, Optuna, Ray and Hydra.

    Raises:
        PydanticCustomError: the value is not a mapping, or has such syntax.
    """
    known = [field.alias or name for name, field in ParameterSpec.model_fields.items()]
    meant = our_form(data, known)
    if meant is not None:
        raise refusal("other-form", *meant)
    if not isinstance(data, Mapping):
        raise refusal("no-range", f"{data!r} is not a range", _NEEDS_A_RANGE)
    plain = data.get("uniform")
    if isinstance(plain, list) and len(plain) == 3:
        hint = f"write {{quniform: {json.dumps(plain, default=str)}}} for a step"
        raise refusal("step-of-uniform", "uniform takes two bounds and no step", hint)
    log_range = data.get("loguniform")
    if isinstance(log_range, list) and len(log_range) == 3:
        raise refusal(
            "step-on-log-scale",
            "loguniform takes no step",
            "remove the step, use logint for integers, or list the values in a choice",
        )


def _field(kind: str) -> str:
    return "integer" if kind == "int" else kind


def _stepped(low: float, high: float, step: float) -> list[float]:
    """Return low, low + step, ... up to high, without floating-point artifacts such as
    0.30000000000000004.
    """
    first, last, width = (Decimal(str(number)) for number in (low, high, step))
    return [float(first + index * width) for index in range(int((last - first) / width) + 1)]


def _check_choice(values: Sequence[Any]) -> None:
    for index, value in enumerate(values):
        if isinstance(value, float) and not math.isfinite(value):
            raise refusal(
                "not-finite", f"choice contains {value}, which is not finite", "remove it"
            )
        for earlier in values[:index]:
            # Plain equality, because Optuna also treats `1` and `true` as the same choice.
            if value != earlier:
                continue
            left, right = json.dumps(earlier), json.dumps(value)
            if left == right:
                raise refusal("repeated-choice", f"choice lists {left} twice", "remove one")
            raise refusal(
                "equal-choices",
                f"choice lists {left} and {right}, which count as the same value",
                "remove one, or put one in quotes if the program expects a string",
            )


def _check_bounds(kind: str, bounds: Bounds) -> None:
    low, high, step = bounds.low, bounds.high, bounds.step
    if not low < high:
        raise refusal(
            "empty-range",
            f"{kind}: low {low} must be below high {high}",
            "write [LOW, HIGH], or {value: X} for a constant",
        )
    if kind.startswith("log") and low <= 0:
        raise refusal(
            "log-of-zero",
            f"{kind}: low {low} must be above 0 on a logarithmic scale",
            "raise it, or use a range that is not logarithmic",
        )
    if step is not None and not 0 < step <= high - low:
        raise refusal(
            "step-outside-range",
            f"{kind}: step {step} must be above 0 and at most high - low",
            "write [LOW, HIGH, STEP]",
        )
    if kind != "logint" and step is not None and (high - low) / step > _MAX_VALUES:
        raise refusal(
            "too-many-values", f"{kind}: more than {_MAX_VALUES:,} values", "use a larger step"
        )
