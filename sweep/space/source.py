"""The file that a sweep's space was read from, to detect later edits.

Resuming or extending a sweep uses its own copy, ``space.lock.yaml``, so that later configurations
are comparable with earlier ones.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loptune.errors import UserError, shortened
from loptune.files import write_atomically
from loptune.yaml_document import parse_yaml
from sweep.space.file import dump_space, load_space
from sweep.space.points import Space
from sweep.space.spec import SweepSpec

_NAME = "space.source.json"  # file in the sweep folder
_LONGEST = 80  # maximum number of characters of a value
# written by `sweep run` itself
_OWN = (
    "search.warm_start",
    "search.earlier_seeds",
    "trainer.held_out_set",
    "program.tracking.offline",
)
_OWN_TRACKING = ("trainer.config.tracking.offline",)


@dataclass(frozen=True)
class SpaceSource:
    """The file or preset that a space was read from."""

    file: str  # absolute path
    overrides: Sequence[str]  # overrides on the command line


def write_source(root: Path, source: SpaceSource) -> None:
    """Record in the sweep folder where its space was read from."""
    write_atomically(root / _NAME, json.dumps(asdict(source)))


_OVERRIDES = "trainer.overrides"


def edits_since(root: Path, spec: SweepSpec) -> list[str]:
    """Return a line for each key whose value in the space file differs from the sweep's own copy.
    Empty if the file was not recorded or is missing; one line with the error if it is no longer
    valid.
    """
    path = root / _NAME
    if not path.is_file():
        return []
    source = SpaceSource(**json.loads(path.read_text("utf-8")))
    file = Path(source.file)
    if not file.is_file():
        return []
    try:
        edited = load_space(file, source.overrides)
    except UserError as error:
        return [f"the file can no longer be read: {error.what}"]
    return list(_differences(_flat_space(spec), _flat_space(edited)))


def edited_file(root: Path) -> str:
    """Return the file that `edits_since` compares."""
    return str(json.loads((root / _NAME).read_text("utf-8"))["file"])


def _flat_space(spec: SweepSpec) -> dict[str, Any]:
    # the sweep's copy lists each baseline once, with the values that its switches imply
    points = Space(spec.parameters).distinct(spec.baselines, spec.program)
    spec = spec.model_copy(update={"baselines": list(points.values())})
    return dict(_flat(parse_yaml(dump_space(spec), "space").data, ""))


def _flat(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            yield from _flat(below, path)
    else:
        yield prefix, value


def _differences(locked: Mapping[str, Any], edited: Mapping[str, Any]) -> Iterator[str]:
    is_warm = bool(locked.get("search.warm_start"))
    for key in dict.fromkeys([*locked, *edited]):
        if key in (*_OWN, *_OWN_TRACKING) or (is_warm and key == "baselines"):
            continue
        if key.startswith(_OVERRIDES):
            continue  # part of the trainer's configuration in the sweep's copy
        before, after = locked.get(key), edited.get(key)
        if before == after:
            continue
        if key == "search.configurations" and (before or 0) >= (after or 0):
            continue  # the sweep was extended
        yield f"{key}: {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    return shortened(json.dumps(value, ensure_ascii=False, default=str), _LONGEST)
