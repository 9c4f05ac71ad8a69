"""The only loader of users' code: rewards, update rules and program functions, given as
``module:name``.

With a single loader, all kinds of code are looked up in the same folders and fail with the same
kind of message, which shows the code, its line or folder, and the fix.
"""

import difflib
import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from loptune.errors import described, shortened
from loptune.shadowing import LOPTUNE_PACKAGES
from rewards.errors import CodedValueError

_MAX_MESSAGE = 300  # characters of a quoted exception


class UserCodeError(CodedValueError):
    """A user's code cannot be loaded. The message shows the code, its place and the fix."""


def load_named(name: str, kind: str, folder: str | Path | None = None) -> Any:
    """Return the object behind ``module:name``.

    Args:
        name: ``module:name``; the module is looked up on the import path, then in ``folder``,
            which is appended to the import path.
        kind: the kind of code in words, for the message: ``reward``.
        folder: folder of the user's modules; the current folder if None.

    Raises:
        UserCodeError: the module cannot be imported or has no such name, or the object is None.
    """
    module_name, _, attribute = name.partition(":")
    module = _import_module(module_name, f"{kind} {name}", Path(folder or Path.cwd()))
    value = getattr(module, attribute, None)
    if value is None:
        public = [other for other, item in vars(module).items() if callable(item)]
        near = difflib.get_close_matches(attribute, public, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        place = getattr(module, "__file__", None) or module_name
        clash, clash_code = _clash(module_name)
        raise UserCodeError(
            f"{kind} {name}: {place} has no {attribute}{hint}{clash}",
            code=clash_code or "no-such-name",
        )
    return value


def folder_of(name: str) -> str:
    """Return the folder on the import path that contains the loaded module of ``module:name``."""
    module_name = name.partition(":")[0]
    file = Path(str(sys.modules[module_name].__file__))
    is_package = file.name == "__init__.py"
    return str(file.parents[module_name.count(".") + is_package])


def place_of(error: BaseException, name: str) -> str:
    """Return ``file:line`` of a syntax error, or of the traceback's last frame in the module of
    ``module:name``; an empty string if there is no such frame.
    """
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    module_name = name.partition(":")[0]
    file = f"/{module_name.replace('.', '/')}.py"
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.endswith(file):
            place = f"{frame.filename}:{frame.lineno}"
    return place


def _import_module(module_name: str, label: str, folder: Path) -> ModuleType:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # last, so that user files do not shadow installed modules
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        file = f"{module_name.replace('.', '/')}.py"
        place = place_of(error, module_name)
        where = f", {place}"
        if not place:
            where = f"; add the folder of {file} to PYTHONPATH, or run the command there"
            where += f" (searched {folder})"
        reason = shortened(described(error), _MAX_MESSAGE)
        clash, clash_code = _clash(module_name)
        raise UserCodeError(
            f"{label}: cannot import {module_name}: {reason}{where}{clash}",
            code=clash_code or "not-imported",
        ) from error


def _clash(module_name: str) -> tuple[str, str]:
    """Return a hint and a code if the module has the name of one of loptune's packages, else empty
    strings.
    """
    package = module_name.partition(".")[0]
    if package not in LOPTUNE_PACKAGES:
        return "", ""
    hidden = Path(*module_name.split(".")).with_suffix(".py")
    if hidden.is_file():
        return f"; ./{hidden} is hidden by loptune's package {package}: rename it", "file-hidden"
    return f"; {package} is loptune's own package: give yours another name", "name-of-our-package"
