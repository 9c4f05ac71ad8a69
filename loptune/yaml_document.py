"""YAML configuration reader whose errors show file, line and the nearest valid key."""

import contextlib
import difflib
import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from loptune.credentials import CREDENTIALS_IN_URL
from loptune.errors import ConfigError, MissingError, shortened

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

_MAX_BYTES = 1 << 18
_MANY = 12  # maximum number of names listed in a hint
_SCALARS = {
    "null": r"(~|null|Null|NULL|)",
    "bool": r"(true|True|TRUE|false|False|FALSE)",
    "int": r"[-+]?[0-9]+",
    "float": r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))",
}
_TRUE = ("true", "True", "TRUE")
_RESOLVERS = {
    None: [(f"tag:yaml.org,2002:{name}", re.compile(f"{text}$")) for name, text in _SCALARS.items()]
}


class _Loader(yaml.SafeLoader):
    """YAML loader with the scalar types of YAML 1.2 and without aliases.

    YAML 1.1 reads 010 as 8, 1:30 as 90, ``no`` as false and 1e-6 as a string. Aliases would allow
    exponential expansion ("billion laughs"); use ``extends`` to share settings.
    """

    yaml_implicit_resolvers = _RESOLVERS

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases are not supported: write out the value", problem_mark=mark
            )
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return int(node.value)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    """Dumper that quotes strings which `_Loader` or a YAML 1.1 reader would parse as a
    different type.
    """

    yaml_implicit_resolvers = yaml.SafeDumper.yaml_implicit_resolvers | _RESOLVERS


@dataclass(frozen=True)
class Place:
    """The line of a key in a file."""

    source: str
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line}"


@dataclass(frozen=True)
class YamlDocument:
    """A parsed YAML mapping with the place of each key. The mapping of a file that extends another
    file has the keys of both.
    """

    data: dict[str, Any]
    places: Mapping[KeyPath, Place]
    source: str

    def place(self, path: KeyPath) -> str:
        """Return ``file:line`` of a key, or of its nearest existing parent; the file alone if there
        is neither.
        """
        known = path
        while known and known not in self.places:
            known = known[:-1]
        return str(self.places.get(known, self.source))

    def where(self, path: KeyPath) -> str:
        """Return file, line and dotted key; the file alone for an empty path."""
        return f"{self.place(path)}, key {dotted(path)}" if path else self.source

    def error(self, what: str, path: KeyPath, hint: str, code: str = "") -> ConfigError:
        """Return a ConfigError for a key, with file and line."""
        return ConfigError(what, self.where(path), hint, dotted(path), code=code)


def dotted(path: Iterable[str | int]) -> str:
    """Write ``("algorithm", "name")`` as ``algorithm.name``."""
    return ".".join(str(part) for part in path)


def nearest(word: str, choices: Iterable[str], listing: str = "") -> str:
    """Return a hint with the choice closest to ``word``. If none is close, list the choices; if
    there are too many, return ``listing``, or list the first ones if ``listing`` is empty.

    The last part of a dotted key is enough for a match: ``lr`` matches ``optim.lr``.
    """
    names = sorted(choices)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    by_end: dict[str, str] = {}
    if "." not in word:
        by_end = {name.rpartition(".")[2]: name for name in names if "." in name}
    if not close or close[0] in by_end.values():
        ends = difflib.get_close_matches(word, by_end, n=1, cutoff=0.6)
        if ends:
            close = [by_end[ends[0]]]
    if close:
        return f"did you mean {close[0]}?"
    if len(names) <= _MANY:
        return f"valid: {', '.join(names)}"
    return listing or f"valid: {', '.join(names[:_MANY])}, and others"


def read_yaml(path: Path) -> YamlDocument:
    """Read a YAML mapping with safe loading.

    Raises:
        MissingError: the file does not exist.
        ConfigError: the file cannot be read, is larger than 256 KiB, is not UTF-8 or not valid
            YAML, has an alias, a Python tag or a duplicate key, or is not a mapping.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES >> 10} KiB")
        text = content.decode()
    except FileNotFoundError:
        raise MissingError(
            f"no such file: {path}", str(path.absolute()), _files_beside(path), code="no-such-file"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}",
            str(path),
            "pass a YAML file that you have permission to read",
            code="file-unreadable",
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"cannot read {path}: {error}",
            str(path),
            "save it as YAML in UTF-8",
            code="file-unreadable",
        ) from error
    return parse_yaml(text, str(path))


def _files_beside(path: Path) -> str:
    """Return a hint for a missing file, such as the file with the closest name in its folder."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {folder}: check the path"
    files = [str(file) for file in folder.iterdir() if file.suffix in (".yaml", ".yml")]
    if not files:
        return f"{folder.absolute()} has no YAML file"
    return nearest(str(path), files)


def parse_yaml(text: str, source: str) -> YamlDocument:
    """Parse a YAML mapping; ``source`` is its name in errors.

    Raises:
        ConfigError: the text is not valid YAML, has an alias, a Python tag or a duplicate key, or
            is not a mapping.
    """
    lines: dict[KeyPath, int] = {}
    try:
        data, root = _load_yaml(text)
        if root is not None:
            _collect_lines(root, (), lines, source)
    except (yaml.YAMLError, RecursionError) as error:
        what, line = _problem(error)
        where = source if line is None else f"{source}:{line}"
        raise ConfigError(
            f"invalid YAML: {what}", where, "correct the line", code="invalid-yaml"
        ) from None
    if not isinstance(data, dict):
        raise ConfigError(
            "the file must contain a mapping",
            source,
            "write it as `key: value` lines",
            code="no-mapping",
        )
    places = {path: Place(source, line) for path, line in lines.items()}
    return YamlDocument(data, places, source)


def scalar_value(text: str) -> Any:
    """Return the value of a plain scalar according to YAML 1.2. A number with too many digits
    stays text.
    """
    kind = next((name for name in _SCALARS if re.fullmatch(_SCALARS[name], text)), "str")
    if kind == "null":
        return None
    if kind == "bool":
        return text in _TRUE
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:  # a number with too many digits
        return text
    return text


def parse_value(text: str, where: str) -> Any:
    """Parse a YAML value from the command line.

    Raises:
        ConfigError: invalid YAML; ``where`` is the location to report.
    """
    try:
        return _load_yaml(text)[0]
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(
            f"invalid YAML value: {shortened(text, 80)} ({_problem(error)[0]})",
            where,
            "quote the value",
            code="invalid-yaml",
        ) from None


def parse_override(text: str) -> tuple[str, Any]:
    """Split ``key=value`` and read the value as YAML.

    Raises:
        ConfigError: no key, no ``=``, no value, or a value that is not YAML.
    """
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ConfigError(
            f"invalid override: {text}",
            "command line",
            "write key=value, e.g. algorithm.ar_alpha=0.3",
            code="invalid-override",
        )
    if not value.strip():
        raise ConfigError(
            f"{key}= has no value",
            f"command line, key {key}",
            f'write {key}=VALUE, or {key}=null, or {key}=""',
            code="no-value",
        )
    return key, parse_value(value, f"command line, key {key}")


def dump_yaml(data: Any) -> str:
    """Return JSON values as YAML text; keys keep their order."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False)


def _load_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """Return a YAML document's value and root node; both None if the document is empty.

    Raises:
        yaml.YAMLError: the text is not valid YAML.
    """
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        return (None, None) if root is None else (loader.construct_document(root), root)
    except (ValueError, KeyError, AttributeError) as error:  # raised by, for example, !!int x
        raise yaml.YAMLError(str(error)) from None
    finally:
        loader.dispose()


def _problem(error: Exception) -> tuple[str, int | None]:
    """Return a one-line error message and the line number."""
    if isinstance(error, RecursionError):
        return "nested too deeply", None
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return " ".join(str(text).split()), mark.line + 1 if mark else None


def _collect_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], source: str) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            child = (*path, str(key.value))
            if child in lines:
                raise ConfigError(
                    f"key {dotted(child)} appears twice (lines {lines[child]} and "
                    f"{key.start_mark.line + 1})",
                    f"{source}:{key.start_mark.line + 1}",
                    "remove one of them",
                    code="key-twice",
                )
            lines[child] = key.start_mark.line + 1
            _collect_lines(value, child, lines, source)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*path, index)] = value.start_mark.line + 1
            _collect_lines(value, (*path, index), lines, source)


def validate(model: type[Model], document: YamlDocument) -> Model:
    """Build ``model`` from a document.

    Raises:
        ConfigError: the document does not fit the model. The error shows the first unknown key and
            the nearest valid one, or else the first other fault, with file, line and key.
    """
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        errors = error.errors()
        # A misspelled key also causes a "missing" error; report the misspelling.
        first = next((fault for fault in errors if fault["type"] == "extra_forbidden"), errors[0])
        path = tuple(first["loc"])
        if first["type"] == "extra_forbidden":
            valid = list(field_names(model, path[:-1]))
            if len(path) == 1:
                valid += leaf_keys(model)
            listing = getattr(model, "docs_hint", "").format(*path[:-1][:1] or [""]).strip()
            hint = nearest(str(path[-1]), valid, listing)
            hint = other_names(model, path[:-1]).get(str(path[-1]), hint)
            raise ConfigError(
                f"unknown key {dotted(path)}",
                document.where(path),
                hint,
                dotted(path),
                code="unknown-key",
            ) from None
        raise ConfigError(
            _refusal(first),
            document.where(path),
            _hint(model, first),
            dotted(path),
            code=_code(first),
        ) from None


# pydantic error type -> how to write the value
_FORMS = {
    "dict_type": "write it as `key: value` lines",
    "float_parsing": "write a number without a unit or a percent sign",
    "int_parsing": "write an integer",
    "int_from_float": "write an integer",
    "finite_number": "write a finite number",
    "bool_parsing": "write true or false",
}


def _code(error: Any) -> str:
    """Return the code of a validation error: its own code, or pydantic's error type."""
    if error["type"] == "missing":
        return "missing-key"
    return str(error["type"]).replace("_", "-")


def _refusal(error: Any) -> str:
    key = dotted(error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    given = error["input"]
    if error["type"] != CREDENTIALS_IN_URL and isinstance(given, str | int | float | None):
        message += f", got {shortened(repr(given), 80)}"
    return f"{key}: {message}" if key else message


def _hint(model: type[BaseModel], error: Any) -> str:
    if error["type"] == CREDENTIALS_IN_URL:
        return (
            "remove them from the URL; for MLflow set MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD"
        )
    context = error.get("ctx") or {}
    if "hint" in context:
        return str(context["hint"])
    expected = context.get("expected")
    if error["type"] == "literal_error" and expected:
        return nearest(
            str(error.get("input")),
            [choice.strip(" '") for choice in expected.replace(" or ", ",").split(",")],
        )
    if error["type"] == "missing":
        return f"add {error['loc'][-1]}: VALUE"
    key = dotted(error["loc"])
    explains = getattr(model, "docs_hint", None)
    leaf_key = next((leaf for leaf in leaf_keys(model) if f"{key}.".startswith(f"{leaf}.")), key)
    documented = explains.format(leaf_key) if explains and leaf_key else ""
    return "; ".join(part for part in (_right_form(error), documented) if part)


def _right_form(error: Any) -> str:
    """Return how to write a value of the expected type; empty if the message says it already."""
    kind, given = error["type"], error["input"]
    if kind == "list_type" and not isinstance(given, dict):
        values = [] if given is None else [given]
        if isinstance(given, str):
            with contextlib.suppress(ValueError):  # an unclosed quote
                values = shlex.split(given)
        return f"write a list: {_in_one_line(values)}"
    if kind == "string_type" and isinstance(given, bool | int | float):
        return f'write it in quotes: "{json.dumps(given)}"'
    return _FORMS.get(kind, "")


def _in_one_line(values: list[Any]) -> str:
    """Return a list as one line of YAML, shortened if it is long."""
    text = yaml.safe_dump(values, default_flow_style=True, width=math.inf, allow_unicode=True)
    return shortened(text.strip(), 200)


def field_names(model: type[BaseModel], path: KeyPath = ()) -> list[str]:
    """Return the field names of the submodel at ``path``; empty if there is a value instead."""
    current = submodel(model, path)
    if current is not None:
        return [info.alias or name for name, info in current.model_fields.items()]
    return []


def other_names(model: type[BaseModel], path: KeyPath = ()) -> Mapping[str, str]:
    """Return the submodel's hints for keys of other programs."""
    return getattr(submodel(model, path), "other_names", {})


def leaf_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Return all dotted keys of a model that take a value, including sections that may be null,
    each after ``prefix``.
    """
    keys: list[str] = []
    for field, info in model.model_fields.items():
        name = info.alias or field
        nested = section_of(info.annotation)
        if nested is not info.annotation:  # a value, or a section that may be null
            keys.append(prefix + name)
        if nested is not None:
            keys += leaf_keys(nested, f"{prefix}{name}.")
    return keys


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section class of a field (``Section`` or ``Section | None``), or None if the field
    is a value or a rule.
    """
    return _model_in(annotation) if get_origin(annotation) in (None, Union, UnionType) else None


def submodel(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """Return the model class at ``path``, looking through optional, list and mapping types; None
    for a value.
    """
    current: type[BaseModel] | None = model
    for part in path:
        if current is None:
            return None
        fields = {info.alias or name: info for name, info in current.model_fields.items()}
        if part in fields:
            current = _model_in(fields[str(part)].annotation)
        # otherwise part is a list index or mapping key, and `current` is already the element model
    return current


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None if getattr(annotation, "is_value", False) else annotation
    if get_origin(annotation) in (Annotated, Union, UnionType, list, dict, tuple):
        for argument in get_args(annotation):
            if (model := _model_in(argument)) is not None:
                return model
    return None
