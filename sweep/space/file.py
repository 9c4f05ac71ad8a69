"""Read and write search spaces.

``load_space`` checks everything that can be checked before a trial starts: names, ranges,
conditions and baselines are checked against the program that the space searches.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from loptune.errors import ConfigError, MissingError
from loptune.yaml_document import (
    KeyPath,
    YamlDocument,
    dump_yaml,
    field_names,
    leaf_keys,
    nearest,
    parse_override,
    read_yaml,
    validate,
)
from sweep.programs.loptune import LoptuneProgram
from sweep.space.checks import check_space
from sweep.space.parameters import KINDS
from sweep.space.spec import SweepSpec


def published_spaces() -> dict[str, Path]:
    """Return the built-in search spaces: name -> file."""
    spaces = {}
    for entry in resources.files("search_spaces").iterdir():
        if entry.name.endswith(".yaml"):
            spaces[entry.name.removesuffix(".yaml")] = Path(str(entry))
    return spaces


def find_space(name: str) -> Path:
    """Return the file of a search space, given a path or the name of a built-in space such as
    ``quickstart``.

    Raises:
        MissingError: neither exists; the error suggests the nearest name.
    """
    path = Path(name)
    if path.is_file() or (path.suffix in (".yaml", ".yml") and len(path.parts) > 1):
        return path  # a missing file is reported when it is read
    published = published_spaces()
    stem = name.removesuffix(".yaml")
    if stem not in published:
        here = [file.name for file in Path().glob("*.y*ml")]
        raise MissingError(
            f"no search space {name}",
            str(path.absolute()),
            nearest(name, [*here, *published]),
            code="no-search-space",
        )
    return published[stem]


def load_space(path: Path, overrides: Sequence[str] = ()) -> SweepSpec:
    """Read a search space, apply the overrides and check the result against its program.

    An override is ``KEY=VALUE`` with a key of the space, or ``trainer.KEY=VALUE`` such as
    ``trainer.optim.lr=1e-4``.

    Raises:
        ConfigError: the space is invalid; the error has the file, line, key and nearest valid key.
        MissingError: a file does not exist.
    """
    return resolve_space(read_yaml(path), path.parent, overrides)


def resolve_space(document: YamlDocument, folder: Path, overrides: Sequence[str] = ()) -> SweepSpec:
    """Check a document as `load_space` does, with the same errors; the path of its trainer file is
    relative to ``folder``.
    """
    document = _apply_space_overrides(document, overrides)
    spec = validate(SweepSpec, document)
    spec = spec.with_program(spec.program.resolved(folder, document))
    if spec.search.sampler == "auto":
        search = spec.search.model_copy(update={"sampler": automatic_sampler(spec)[0]})
        spec = spec.model_copy(update={"search": search})
    check_space(spec, document)
    return spec


def automatic_sampler(spec: SweepSpec) -> tuple[str, str]:
    """Return the sampler that ``auto`` stands for, and the reason.

    Optuna's Gaussian process does not model conditions and learns only from complete trials.
    Conditions on the arm are ignored, because they are constant within an arm.
    """
    if spec.scheduler.asha:
        return "tpe", "trials are stopped early"
    for key, parameter in spec.parameters.items():
        is_searched = parameter.kind not in ("value", "by")
        if is_searched and set(parameter.when) - {spec.search.tune_within}:
            return "tpe", f"{key} has a condition"
    return "gp", "no searched parameter has a condition"


def dump_space(spec: SweepSpec) -> str:
    """Return the space as YAML text that ``load_space`` reads back, with the trainer configuration
    resolved.
    """
    data = spec.model_dump(mode="json", by_alias=True)
    # An empty `asha:` means its defaults.
    data["scheduler"] = spec.scheduler.model_dump(exclude_none=True)
    for key, parameter in spec.parameters.items():
        # JSON would turn the keys of `by: {x: {true: ...}}` into strings
        data["parameters"][key] = parameter.model_dump(by_alias=True, exclude_unset=True)
    return dump_yaml(data)


@dataclass(frozen=True)
class _OverriddenDocument(YamlDocument):
    """A document in which some keys come from the command line."""

    overridden: frozenset[KeyPath] = frozenset()

    def place(self, path: KeyPath) -> str:
        if any(path[: len(key)] == key for key in self.overridden):
            return "command line"
        return super().place(path)


def _apply_space_overrides(document: YamlDocument, overrides: Sequence[str]) -> YamlDocument:
    data = copy.deepcopy(document.data)
    places = [_override_place(text, data) for text in overrides]
    for path, value in places:
        parent: Any = data
        for part in path[:-1]:
            if part == "trainer" and isinstance(parent.get("trainer"), str):
                parent["trainer"] = {"preset": parent["trainer"]}
            below = parent.get(part)
            parent[part] = below if isinstance(below, dict) else {}
            parent = parent[part]
        if path[0] == "parameters" and path[-1] in KINDS and len(path) == 3:
            for kind in KINDS:  # the new range replaces the old one
                parent.pop(kind, None)
        parent[path[-1]] = value
    overridden = frozenset(path for path, _ in places)
    return _OverriddenDocument(data, document.places, document.source, overridden)


def override_keys() -> list[str]:
    """Return the keys that a command-line override may set."""
    written = [key for key in leaf_keys(SweepSpec) if not key.startswith(("trainer", "confirms"))]
    trainer_keys = ["preset", *LoptuneProgram.keys()]
    return [*written, *(f"trainer.{key}" for key in trainer_keys)]


def _parameter_path(rest: str, data: dict[str, Any]) -> list[str]:
    """Split a dotted path into the key of a parameter, which may contain dots, and the keys below
    it: ``optim.lr.when.rule`` is the condition of ``optim.lr`` on ``rule``.
    """
    written = data.get("parameters")
    program = data.get("program")
    keys: list[str] = []
    if isinstance(written, dict):
        keys += written
    if isinstance(program, dict):
        keys += program.get("defaults") or ()
    if rest in keys:
        return [rest]
    words = rest.split(".")
    for index in range(len(words) - 1, 0, -1):
        if ".".join(words[:index]) in keys and words[index] not in ("when", "by"):
            return [".".join(words[:index]), *words[index:]]
        if words[index] in ("when", "by"):
            below = ".".join(words[index + 1 :])
            path = [".".join(words[:index]), words[index], below]
            return [part for part in path if part]
        if index == len(words) - 1 and words[index] in (*KINDS, "else"):
            return [".".join(words[:index]), words[index]]
    return [rest]


def _override_place(text: str, data: dict[str, Any]) -> tuple[tuple[str, ...], Any]:
    """Return the path in the space that an override sets, and its value.

    Raises:
        ConfigError: the space has no such key.
    """
    key, value = parse_override(text)
    head, _, rest = key.partition(".")
    sections = field_names(SweepSpec)
    if head not in sections:
        choices = override_keys()
        if f"trainer.{key}" in choices:
            hint = f"write trainer.{text}"
        elif rest:
            hint = nearest(head, sections)
        else:
            hint = nearest(key, choices, SweepSpec.docs_hint)
        raise ConfigError(
            f"unknown key {key}", f"command line, key {key}", hint, key=key, code="unknown-key"
        )
    if head == "trainer" and rest not in ("", "preset"):
        return ("trainer", "overrides", rest.removeprefix("overrides.")), value
    if key.startswith("program.defaults."):
        return ("program", "defaults", key.removeprefix("program.defaults.")), value
    if head == "parameters" and rest:
        return ("parameters", *_parameter_path(rest, data)), value
    return tuple(key.split(".")), value
