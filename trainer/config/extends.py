"""Run file inheritance: presets, ``extends:`` and variants.

A file may extend a preset or another file (``extends: kk_3b``) and define variants, each a partial
configuration. ``kk_3b:ar_lopti`` selects variant ``ar_lopti`` of preset ``kk_3b`` on the command
line, in ``extends:`` and in search spaces.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from loptune.errors import ConfigError
from loptune.yaml_document import KeyPath, YamlDocument, dotted, nearest, read_yaml
from trainer.rules.kinds import KINDS

_IsSection = Callable[[KeyPath], bool]
_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class RunFile:
    """A run file and optionally one of its variants."""

    path: Path
    variant: str = ""

    @property
    def name(self) -> str:
        """Name usable as a folder name: ``kk_3b-ar_lopti``."""
        return f"{self.path.stem}-{self.variant}" if self.variant else self.path.stem


def preset_names() -> list[str]:
    """Return the names of the built-in presets."""
    folder = resources.files("trainer.config") / "presets"
    files = [entry.name for entry in folder.iterdir() if entry.name.endswith(".yaml")]
    return sorted(file.removesuffix(".yaml") for file in files)


def variant_names(preset: str) -> list[str]:
    """Return a preset's variant names: its own, or else the inherited ones."""
    return list(_resolve(find_spec(preset), lambda path: False, ()).data.get("variants") or {})


def preset_specs() -> list[str]:
    """Return all presets and their variants as specs: ``kk_3b``, ``kk_3b:ar``."""
    specs = []
    for preset in preset_names():
        specs.append(preset)
        specs += [f"{preset}:{variant}" for variant in variant_names(preset)]
    return specs


def find_spec(spec: str, relative_to: Path = Path()) -> RunFile:
    """Resolve ``NAME[:VARIANT]``, where NAME is a preset or a path.

    Raises:
        ConfigError: NAME is neither a preset nor a file, and does not end in .yaml or .yml;
            suggests the nearest preset.
    """
    name, _, variant = spec.rpartition(":") if _has_variant(spec, relative_to) else (spec, "", "")
    path = Path(name) if Path(name).is_absolute() else relative_to / name
    if path.suffix in _YAML or path.is_file():
        return RunFile(path, variant)
    if name in preset_names():
        return RunFile(
            Path(str(resources.files("trainer.config") / "presets" / f"{name}.yaml")), variant
        )
    raise ConfigError(
        f"no preset or file named {name}",
        spec,
        nearest(spec, preset_specs(), "trainer presets"),
        code="no-preset",
    )


def resolve(spec: str, is_section: _IsSection, relative_to: Path = Path()) -> YamlDocument:
    """Load ``NAME[:VARIANT]`` and merge, in increasing priority, the extended file, the file and
    the variant.

    Sections (key paths for which ``is_section`` is true) are merged key by key; other values are
    replaced. Relative paths are resolved against ``relative_to``.

    Raises:
        ConfigError: unknown preset or variant, circular ``extends``, or a file that `read_yaml`
            rejects.
        MissingError: a named file does not exist.
    """
    document = _resolve(find_spec(spec, relative_to), is_section, ())
    document.data.pop("variants", None)
    return document


def _has_variant(spec: str, relative_to: Path) -> bool:
    _, colon, variant = spec.rpartition(":")
    return bool(colon) and "/" not in variant and not (relative_to / spec).is_file()


def _resolve(file: RunFile, is_section: _IsSection, seen: tuple[Path, ...]) -> YamlDocument:
    document = read_yaml(file.path)
    if not isinstance(document.data.get("variants") or {}, Mapping):
        raise document.error(
            "variants must map names to settings",
            ("variants",),
            "write name: {...}",
            code="invalid-variants",
        )
    base = document.data.pop("extends", None)
    if base is not None:
        parent = _parent(base, document, file.path, seen)
        below = _resolve(parent, is_section, (*seen, file.path.resolve()))
        document = _merge(below, document, is_section)
    if file.variant:
        document = _with_variant(document, file, is_section)
    return document


def _parent(base: Any, document: YamlDocument, path: Path, seen: tuple[Path, ...]) -> RunFile:
    where = document.where(("extends",))
    if not isinstance(base, str):
        raise ConfigError(
            "extends must name one preset or file", where, "write one name", code="invalid-extends"
        )
    parent = find_spec(base, relative_to=path.parent)
    if parent.path.resolve() in (*seen, path.resolve()):
        raise ConfigError("circular extends", where, "remove the cycle", code="circular-extends")
    return parent


def _with_variant(document: YamlDocument, file: RunFile, is_section: _IsSection) -> YamlDocument:
    variants = document.data.get("variants") or {}
    if file.variant not in variants:
        hint = f"{file.path.stem} has no variants"
        if variants:
            hint = nearest(file.variant, map(str, variants))
        raise document.error(f"no variant {file.variant}", ("variants",), hint, code="no-variant")
    variant_path = ("variants", file.variant)
    changes = variants[file.variant] or {}
    if not isinstance(changes, Mapping):
        raise document.error(
            "a variant must be a mapping of sections",
            variant_path,
            "write section: {key: value}",
            code="invalid-variant",
        )
    places = {}
    for path, place in document.places.items():
        if path[:2] == variant_path and len(path) > 2:
            places[path[2:]] = place
    return _merge(document, YamlDocument(dict(changes), places, document.source), is_section)


def _merge(below: YamlDocument, above: YamlDocument, is_section: _IsSection) -> YamlDocument:
    """Return the values of ``below``, overridden by the values of ``above``. Sections are merged
    key by key, and update rules as `RuleKind.merge` does; any other value is replaced as a whole.
    """
    replaced: list[KeyPath] = []

    def merge(old_values: Mapping[str, Any], values: Mapping[str, Any], at: KeyPath) -> Any:
        merged = dict(old_values)
        for key, value in values.items():
            old = merged.get(key)
            path = (*at, key)
            if dotted(path) in KINDS and isinstance(value, str | Mapping):
                merged[key] = KINDS[dotted(path)].merge(old, value)
            elif isinstance(old, Mapping) and isinstance(value, Mapping) and is_section(path):
                merged[key] = merge(old, value, path)
            else:
                merged[key] = value
                replaced.append(path)
        return merged

    data = merge(below.data, above.data, ())
    places = {}
    for path, place in below.places.items():
        if not any(path[: len(gone)] == gone for gone in replaced):
            places[path] = place
    return YamlDocument(data, {**places, **above.places}, above.source)
