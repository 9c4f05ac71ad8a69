"""Base class and field types of configuration sections."""

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
LARGEST_PORT = 65535
Port = Annotated[int, Field(ge=1, le=LARGEST_PORT)]
# maximum number of completions sampled at a time; each takes 2 KB plus its tokens
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
    """Return an error for a validator to raise; `validate` prints its code and hint. Without a
    hint, the error refers to the documentation of the section.
    """
    context = {"message": message}
    if hint:
        context["hint"] = hint
    return PydanticCustomError(code, "{message}", context)


class Section(BaseModel):
    """A configuration section: frozen, rejects unknown keys and non-finite numbers.

    Each field is documented by the docstring below it, which `field_descriptions` reads.
    """

    # whether the whole section is the value of one key, such as an update rule, so its fields are
    # not separate keys
    is_value: ClassVar[bool] = False
    # key of another program -> the equivalent key
    other_names: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(
        hide_input_in_errors=True,  # the input may be a password
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        validate_default=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _reject_bools(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject booleans for numeric fields; pydantic would convert them to 1 and 0."""
        allowed = str(cls.model_fields[str(info.field_name)].annotation)
        values = value if isinstance(value, list | tuple) else [value]
        given = any(isinstance(item, bool) for item in values)
        is_number = re.search(r"\b(?:int|float)\b", allowed) and not re.search("bool|Any", allowed)
        if given and is_number:
            raise PydanticCustomError("float_type", "must be a number, not a boolean")
        return value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Add the descriptions of the fields to the JSON schema."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_descriptions(cls).items():
            key = cls.model_fields[name].alias or name
            if key in properties:
                properties[key].setdefault("description", text)
        return schema


@cache
def field_descriptions(section: type[BaseModel]) -> dict[str, str]:
    """Return the description of each documented field of a section: its ``description``, or its
    docstring.

    With ``use_attribute_docstrings``, pydantic would read the docstrings when the class is created,
    which doubles the time to import all sections in every process of a sweep.
    """
    texts: dict[str, str] = {}
    for model in reversed(section.__mro__):
        if issubclass(model, BaseModel):
            texts |= _docstrings(model)
    described = {
        name: field.description or texts.get(name) for name, field in section.model_fields.items()
    }
    return {name: text for name, text in described.items() if text}


def _docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings below the fields that a class defines; empty without its source."""
    try:
        source = inspect.getsource(model)
    except (OSError, TypeError):
        return {}
    [definition] = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef), "not the source of a class"
    texts = {}
    for field, text in pairwise(definition.body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            texts[field.target.id] = inspect.cleandoc(text.value.value)
    return texts
