"""Find loptune's packages before files of the same name, such as a user's own ``trainer.py``.

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

LOPTUNE_PACKAGES = ("rewards", "trainer", "dashboards", "sweep", "search_spaces")
RARELY = 50_000  # allocations between two collections of garbage; Python's own: 700 or 2,000
_ROOT = Path(__file__).resolve().parents[1]


class OwnPackages(MetaPathFinder):
    """Finds the top-level packages of `LOPTUNE_PACKAGES` next to this package, even if another
    module of that name is on ``sys.path``.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of our package, or None for any other module."""
        if path is not None or fullname not in LOPTUNE_PACKAGES:
            return None
        return PathFinder.find_spec(fullname, [str(_ROOT)], target)


def find_own_packages_first() -> None:
    """Make this process find our packages first, whatever is in the current folder.

    On the nodes of a cluster, Ray unpacks each package into a folder of its own and puts these
    folders first on ``sys.path``: there is nothing to do.

    Raises:
        ImportError: a user's file of such a name has been imported already. Its message names the
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
    """Prepare a worker of Ray: find our packages first, and import without looking for garbage.

    Imports allocate a lot and leave no garbage, and looking for it takes a fifth of their time. A
    rank collects as usual once it has imported its trainer.
    """
    gc.set_threshold(RARELY)
    find_own_packages_first()


def missing_attribute(package: str, name: str) -> str:
    """Return the message of an AttributeError. If the package hides a user's file in the current
    folder, it names the file.
    """
    text = f"module {package!r} has no attribute {name!r}"
    hidden = Path.cwd() / f"{package}.py"
    if not hidden.is_file():
        return text
    return (
        f"{text}: it is loptune's package, which hides a file of yours [shadowed]\n"
        f"where: {hidden}\n"
        f"next:  rename {hidden.name}"
    )


def shadowed(name: str, file: str) -> str:
    """Return the message for a user's file that was imported in place of our package ``name``."""
    return (
        f"error: the module {name} that was imported is not loptune's package {name} [shadowed]\n"
        f"where: {file}\n"
        f"next:  rename {Path(file).name}, or do not import it in a program that uses loptune"
    )


def _is_ours(module: ModuleType) -> bool:
    """Return whether the module is our package; one without a file is assumed to be ours."""
    file = getattr(module, "__file__", None)
    return file is None or _ROOT in Path(file).resolve().parents
