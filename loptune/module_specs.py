"""Find modules as an interpreter finds them, without importing anything."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from loptune.shadowing import OwnPackages


def module_spec(name: str, folder: Path) -> ModuleSpec | None:
    """Return the spec that a new interpreter in ``folder`` would find for a dotted name; None if
    there is no such module.

    `importlib.util.find_spec` would import the packages that contain the module.
    """
    places: list[str] | None = [str(folder), *sys.path]
    spec: ModuleSpec | None = None
    called = ""
    for part in name.split("."):
        called = f"{called}.{part}" if called else part
        spec = _find(called, places or [])
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return spec


def installed_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a top-level module from a finder other than `PathFinder`, such as the
    finder of an editable install; None if no such finder locates it.
    """
    for finder in _finders():
        if finder is not PathFinder:
            spec: ModuleSpec | None = finder.find_spec(name, None)
            if spec is not None:
                return spec
    return None


def _find(name: str, places: Sequence[str]) -> ModuleSpec | None:
    """Return the spec from the first finder of this interpreter that knows the module, or None."""
    is_top = "." not in name
    for finder in _finders():
        at = None if is_top and finder is not PathFinder else places
        spec: ModuleSpec | None = finder.find_spec(name, at)
        if spec is not None:
            return spec
    return None


def _finders() -> list[Any]:
    """Return this interpreter's finders, without the one that loptune adds."""
    return [finder for finder in sys.meta_path if not isinstance(finder, OwnPackages)]
