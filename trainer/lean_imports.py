"""Importing transformers without packages it has no use for here."""

import sys

UNUSED = ("sklearn", "scipy")


def import_transformers() -> None:
    """Import transformers as if scikit-learn and SciPy were not installed, which takes a second less.

    It imports both wherever they can be found, and MLflow brings them along, for assisted generation and the
    losses of object detection. Whoever imports them later gets them as usual. Nothing happens once transformers
    is imported.
    """
    if "transformers" in sys.modules:
        return
    hidden = [name for name in UNUSED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: the import system finds no such module
    try:
        from transformers.utils import is_scipy_available, is_sklearn_available

        is_scipy_available(), is_sklearn_available()  # the answers are cached
    finally:
        for name in hidden:
            del sys.modules[name]
