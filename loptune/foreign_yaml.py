"""Read YAML files of other programs: plain values only, in time and memory proportional to their
size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from loptune.yaml_document import scalar_value

MAX_BYTES = 1 << 18
MAX_VALUES = 100_000
_MAX_CHARS = 1 << 20  # maximum length of all values together, including repetitions
_MAX_DEPTH = 64
_MERGE = "<<"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # only its parser events are used


@dataclass(frozen=True)
class _Node:
    """A value with its size, including repetitions by aliases."""

    value: Any
    count: int  # number of values
    chars: int  # number of characters


class ForeignYamlError(ValueError):
    """The YAML is invalid, or larger or more deeply nested than settings can be."""


def read_foreign_yaml(text: str, *, typed: bool = True) -> Any:
    """Return the value of a YAML document; None if it is empty.

    Tags are ignored: a Python object is read as a plain value. Keys of mappings become strings. An
    alias or merge key counts as all the values that it refers to. If a key is repeated, the last
    value is used.

    Args:
        text: at most `MAX_BYTES` of UTF-8.
        typed: whether to convert numbers, booleans and null; otherwise every scalar is a string.

    Raises:
        ForeignYamlError: the text is invalid, is larger than `MAX_BYTES`, is nested too deeply, or
            has more than `MAX_VALUES` values or too many characters after aliases are expanded.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ForeignYamlError(f"more than {MAX_BYTES >> 10} KiB")
    try:
        return _Builder(yaml.parse(text, Loader=_Loader), typed).document()
    except (yaml.YAMLError, RecursionError) as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or error
        raise ForeignYamlError(" ".join(str(problem).split())) from None


class _Builder:
    """Builds values from parser events in a single pass."""

    def __init__(self, events: Iterator[yaml.Event], typed: bool) -> None:
        self._events = events
        self._typed = typed
        self._anchors: dict[str, _Node] = {}
        self._count = 0
        self._chars = 0

    def document(self) -> Any:
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                return self._node(event, depth=0).value
        return None

    def _node(self, event: Any, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise ForeignYamlError("nested too deeply")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise ForeignYamlError(f"the alias {event.anchor} is not defined")
            node = self._anchors[event.anchor]
            self._add(node.count, node.chars)
            return node
        if isinstance(event, yaml.ScalarEvent):
            self._add(1, len(event.value))
            node = _Node(self._scalar(event), 1, len(event.value))
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(depth)
        else:
            node = self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _add(self, count: int, chars: int) -> None:
        self._count += count
        self._chars += chars
        if self._count > MAX_VALUES or self._chars > _MAX_CHARS:
            raise ForeignYamlError(f"more than {MAX_VALUES:,} values or {_MAX_CHARS:,} characters")

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        is_plain = event.implicit[0]  # neither quoted nor tagged
        if self._typed and is_plain:
            return scalar_value(event.value)
        return event.value

    def _sequence(self, depth: int) -> _Node:
        before = (self._count, self._chars)
        self._add(1, 0)
        values = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            values.append(self._node(event, depth + 1).value)
        return self._since(before, values)

    def _mapping(self, depth: int) -> _Node:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        before = (self._count, self._chars)
        self._add(1, 0)
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._node(event, depth + 1).value
            value = self._node(next(self._events), depth + 1).value
            if key == _MERGE:
                merged = _merged(value) | merged
            else:
                own[str(key)] = value
        return self._since(before, merged | own)

    def _since(self, before: tuple[int, int], value: Any) -> _Node:
        return _Node(value, self._count - before[0], self._chars - before[1])


def _merged(value: Any) -> dict[str, Any]:
    """Return the entries of a merge key; of several mappings, the first one has precedence."""
    keys: dict[str, Any] = {}
    for mapping in reversed(value if isinstance(value, list) else [value]):
        if isinstance(mapping, dict):
            keys |= mapping
    return keys
