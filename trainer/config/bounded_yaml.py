"""YAML whose reading costs no more than its length explains: no Python tags, no alias bombs, bounded nesting."""

from typing import Any

import yaml

MAX_BYTES = 1 << 18
MAX_DEPTH = 50
MAX_VALUES = 50_000  # aliases expanded


class _Loader(yaml.SafeLoader):
    """Safe loading with a limit on nesting, whose every refusal is a `yaml.MarkedYAMLError`."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            assert parent is not None
            raise _refusal(f"nested more than {MAX_DEPTH} levels deep", parent)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, str):
                value.encode()
            return value
        except (ValueError, KeyError, AttributeError, TypeError, OverflowError):
            kind = node.tag.removeprefix("tag:yaml.org,2002:")
            raise _refusal(f"not a valid {kind}: {str(node.value)[:40]!r}", node) from None


def load_yaml(text: str) -> tuple[Any, yaml.Node | None]:
    """The value that a YAML document holds, and the node it was made of (None of an empty one).

    Raises:
        yaml.YAMLError: not YAML, more than one document, or beyond one of the limits.
    """
    if len(text) > MAX_BYTES:
        raise yaml.YAMLError(f"more than {MAX_BYTES >> 10} KiB")
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, None
        _check_expanded(root)
        return loader.construct_document(root), root
    finally:
        loader.dispose()


def problem(error: yaml.YAMLError) -> tuple[str, int | None]:
    """What is wrong in one line, and the number of the line where it is."""
    mark = getattr(error, "problem_mark", None)
    text = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return " ".join(str(text).split()), mark.line + 1 if mark else None


def _check_expanded(root: yaml.Node) -> None:
    """Refuse a document that is small only because its aliases stand for much, or for themselves."""
    waiting, values = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        values += 1
        if depth > MAX_DEPTH:
            raise _refusal(f"aliases nest it more than {MAX_DEPTH} levels deep, or without end", node)
        if values > MAX_VALUES:
            raise _refusal(f"aliases make it more than {MAX_VALUES:,} values", node)
        if isinstance(node, yaml.SequenceNode):
            waiting += [(item, depth + 1) for item in node.value]
        elif isinstance(node, yaml.MappingNode):
            waiting += [(part, depth + 1) for pair in node.value for part in pair]


def _refusal(text: str, place: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=place.start_mark)
