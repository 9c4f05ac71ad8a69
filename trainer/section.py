"""The base of all configuration sections and their types."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


def _no_truth(value: Any) -> Any:
    """Refuse true and false, YAML's yes and no, as numbers: pydantic reads them as 1 and 0."""
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "not a number")
    return value


_Number = BeforeValidator(_no_truth)
NonNegative = Annotated[float, Field(ge=0), _Number]
Positive = Annotated[float, Field(gt=0), _Number]
Probability = Annotated[float, Field(ge=0, le=1), _Number]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1), _Number]


class Section(BaseModel):
    """A part of the configuration: frozen, unknown keys and non-finite numbers refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)
