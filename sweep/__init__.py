"""Python API of the ``sweep`` command: docs/guides/python.md."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from loptune.shadowing import find_own_packages_first, missing_attribute

if TYPE_CHECKING:
    from sweep.api import load_results, run

__all__ = ["load_results", "run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(missing_attribute(__name__, name))
    find_own_packages_first()
    # imported on first use, because the commands need no pandas
    return getattr(import_module("sweep.api"), name)
