"""The base of all configuration sections and their types."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
MOST_COMPLETIONS = 500_000  # sampled at one time: 2 KB each without its tokens
Completions = Annotated[int, Field(ge=1, le=MOST_COMPLETIONS)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]


def needs(key: str, default: Any, **constraints: Any) -> Any:
    """Declare a field that has no effect without another key of its section.

    ``KEY`` has to be set, that is not null, 0, false or empty; ``KEY=A|B`` to have one of the
    values.
    """
    return Field(default, json_schema_extra={"needs": key}, **constraints)


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys and non-finite numbers refused."""

    # A field is described by the docstring below it.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false as numbers: pydantic reads them as 1 and 0."""
        allowed = str(cls.model_fields[str(info.field_name)].annotation)
        values = value if isinstance(value, list | tuple) else [value]
        given = any(isinstance(item, bool) for item in values)
        if given and "bool" not in allowed and "Any" not in allowed:
            raise PydanticCustomError("float_type", "true and false are no numbers")
        return value
