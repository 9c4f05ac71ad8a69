"""Comparing update rules by sweeps of trials, from Python as from the ``sweep`` command:
docs/guides/python.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sweep.api import load_results, run

__all__ = ["load_results", "run"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # at the first use: the commands need no pandas
    return getattr(import_module("sweep.api"), name)
