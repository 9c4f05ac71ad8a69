"""Import loptune's packages even if files of the same name exist, such as a user's own
``trainer.py``.

A script's folder comes first on ``sys.path``, so a file ``trainer.py`` in it would be imported
instead of the package ``trainer``.
"""

import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

LOPTUNE_PACKAGES = ("rewards", "trainer", "dashboards", "sweep", "search_spaces", "loptune")
RARELY = 50_000  # allocations between two garbage collections; Python's default is 700 or 2,000
_ROOT = Path(__file__).resolve().parents[1]


class OwnPackages(MetaPathFinder):
    """Finds the top-level packages of `LOPTUNE_PACKAGES` next to this package, even if another
    module of that name is on ``sys.path``.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a loptune package, or None for any other module."""
        if path is not None or fullname not in LOPTUNE_PACKAGES:
            return None
        return PathFinder.find_spec(fullname, [str(_ROOT)], target)


def find_own_packages_first() -> None:
    """Make this process find loptune's packages first, whatever files the current folder contains.
    Cluster nodes do not need this: Ray unpacks each package into its own folder and puts these
    folders first on ``sys.path``.

    Raises:
        ImportError: a user's file with such a name is already imported. The message contains the
            file and the fix.
    """
    if not (_ROOT / LOPTUNE_PACKAGES[0] / "__init__.py").is_file():
        return
    for name in LOPTUNE_PACKAGES:
        module = sys.modules.get(name)
        if module is not None and not _is_ours(module):
            raise ImportError(shadowed(name, getattr(module, "__file__", None) or "unknown file"))
    if not any(isinstance(finder, OwnPackages) for finder in sys.meta_path):
        sys.meta_path.insert(0, OwnPackages())


def prepare_worker() -> None:
    """Prepare a Ray worker: find loptune's packages first, and collect garbage rarely during
    imports. Imports allocate a lot of memory but leave no garbage, and collections would take 20%
    of the import time. Once a rank has imported its trainer, it collects as usual.
    """
    gc.set_threshold(RARELY)
    find_own_packages_first()


def missing_attribute(package: str, name: str) -> str:
    """Return the message of an AttributeError. If the package hides a user's file in the current
    folder, the message includes its path.
    """
    text = f"module {package!r} has no attribute {name!r}"
    hidden = Path.cwd() / f"{package}.py"
    if not hidden.is_file():
        return text
    return (
        f"{text}: this is loptune's package, which hides your file [shadowed]\n"
        f"where: {hidden}\n"
        f"next:  rename {hidden.name}"
    )


def shadowed(name: str, file: str) -> str:
    """Return the message for a user's file that was imported instead of the package ``name``."""
    return (
        f"error: the module {name} that was imported is not loptune's package {name} [shadowed]\n"
        f"where: {file}\n"
        f"next:  rename {Path(file).name}, or do not import it in a program that uses loptune"
    )


def _is_ours(module: ModuleType) -> bool:
    """Return whether the module is loptune's package, which is assumed if it has no file."""
    file = getattr(module, "__file__", None)
    return file is None or _ROOT in Path(file).resolve().parents
