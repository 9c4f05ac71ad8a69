"""Base class and field types of configuration sections."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
# limit of completions sampled at a time: each takes 2 KB plus its tokens
MAX_COMPLETIONS = 500_000
Completions = Annotated[int, Field(ge=1, le=MAX_COMPLETIONS)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]


def needs(key: str, default: Any, **constraints: Any) -> Any:
    """Declare a field that only has an effect if another key of its section is set.

    ``KEY`` requires a value other than null, 0, false or empty; ``KEY=A|B`` requires one of these
    values.
    """
    return Field(default, json_schema_extra={"needs": key}, **constraints)


def refusal(code: str, message: str, hint: str = "") -> PydanticCustomError:
    """Return the error that a validator raises for a value: `validate` prints its code and hint.

    Without a hint, the error points to the section's documentation.
    """
    context = {"message": message}
    if hint:
        context["hint"] = hint
    return PydanticCustomError(code, "{message}", context)


class Section(BaseModel):
    """A configuration section: frozen, rejects unknown keys and non-finite numbers."""

    # whether one key has all of it as its value, such as a rule's: its fields are not separate keys
    is_value: ClassVar[bool] = False

    # each field is documented by the docstring below it
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _reject_bools(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject booleans for numeric fields; pydantic would convert them to 1 and 0."""
        allowed = str(cls.model_fields[str(info.field_name)].annotation)
        values = value if isinstance(value, list | tuple) else [value]
        given = any(isinstance(item, bool) for item in values)
        if given and "bool" not in allowed and "Any" not in allowed:
            raise PydanticCustomError("float_type", "must be a number, not a boolean")
        return value
