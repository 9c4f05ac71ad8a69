"""Hashes of the input files of a run or sweep (datasets, reward and rule modules), to detect
changes.

Hub datasets, and files that a reward module opens itself, are not tracked.
"""

import contextlib
import glob
import hashlib
import io
import json
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

from loptune.errors import ConfigError, StorageError, first_line
from loptune.files import write_atomically
from loptune.mlflow_runs import CHANGES_TAG
from loptune.module_specs import installed_spec
from loptune.shadowing import LOPTUNE_PACKAGES
from trainer.config.schema import TrainConfig
from trainer.run_folder import RunFolder

_INSTALLED = {"site-packages", "dist-packages"}
# `modulefinder`'s module types
_SOURCE = 1
_PACKAGE = 5


def check_inputs(
    folder: Path, what: str, accept: bool, working_dir: Path | None = None
) -> list[str]:
    """Return a message for each file that differs from the folder's ``inputs.json``; empty without
    a record.

    ``what`` is "run" or "sweep". Relative paths are resolved against the working directory.

    Raises:
        ConfigError: a file differs and ``accept`` is False; the error lists the changes.
        StorageError: the record is damaged.
    """
    root = working_dir or Path.cwd()
    changes = [
        f"{name} ({recorded['role']}) {change}"
        for name, recorded in recorded_files(folder).items()
        if (change := _change(recorded, root / name))
    ]
    if changes and not accept:
        raise ConfigError(
            f"{'; '.join(changes)} since the {what} started",
            str(RunFolder(folder).inputs),
            f"restore the old version, start a new {what} with --name, or continue and record "
            "the change with --accept-changes",
            code="inputs-changed",
        )
    return changes


def record_inputs(
    folder: Path, inputs: Iterable[tuple[Path, str]], changes: Sequence[str] = ()
) -> None:
    """Write ``inputs.json``: the hash and role of each file, and the accepted changes."""
    root = Path.cwd()
    files: dict[str, dict[str, str]] = {}
    for path, role in inputs:
        name = str(path.relative_to(root) if path.is_relative_to(root) else path)
        files.setdefault(name, {"role": role, **_fingerprint(path)})
    when = time.strftime("%Y-%m-%d %H:%M")
    accepted = [*_recorded(folder)["accepted"], *(f"{when}: {change}" for change in changes)]
    write_atomically(
        RunFolder(folder).inputs, json.dumps({"files": files, "accepted": accepted}, indent=1)
    )


def accepted_changes(folder: Path) -> str:
    """Return all accepted changes of a run or sweep as one string, empty if there are none."""
    return "; ".join(_recorded(folder)["accepted"])


def change_tags(folder: Path) -> dict[str, str]:
    """Return the MLflow tag with the accepted changes, or an empty dict."""
    accepted = accepted_changes(folder)
    return {CHANGES_TAG: accepted} if accepted else {}


def recorded_files(folder: Path) -> dict[str, dict[str, str]]:
    """Return the recorded files of a run or sweep: path -> ``role``, ``sha256``, ``size``; empty
    without a record.

    Raises:
        StorageError: the record is damaged or cannot be read.
    """
    return dict(_recorded(folder)["files"])


def inherit_inputs(folder: Path, origin: Path) -> None:
    """Copy the recorded inputs of ``origin`` to a new folder, unless it already has its own."""
    if RunFolder(origin).inputs.is_file() and not RunFolder(folder).inputs.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(RunFolder(folder).inputs, RunFolder(origin).inputs.read_bytes())


def _recorded(folder: Path) -> dict[str, Any]:
    path = RunFolder(folder).inputs
    if not path.is_file():
        return {"files": {}, "accepted": []}
    try:
        recorded: dict[str, Any] = json.loads(path.read_text("utf-8"))
        return {"files": dict(recorded["files"]), "accepted": list(recorded["accepted"])}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StorageError(
            f"cannot check whether data, reward or rule files have changed: {first_line(error)}",
            str(path),
            "restore the file, or delete it to skip this check",
            code="inputs-unreadable",
        ) from error


def _change(recorded: dict[str, str], path: Path) -> str:
    if not path.is_file():
        return "was removed"
    now = _fingerprint(path)
    if now["sha256"] == recorded["sha256"]:
        return ""
    if now["size"] == recorded["size"]:
        return f"has changed (its size is still {now['size']})"
    return f"has changed ({recorded['size']} -> {now['size']})"


def _fingerprint(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "size": f"{path.stat().st_size:,} bytes"}


def input_files(configs: Iterable[TrainConfig]) -> Iterator[tuple[Path, str]]:
    """Yield the dataset files and the reward and rule modules of the configurations, each with its
    role.
    """
    root = Path.cwd()
    for config in configs:
        named = [("training data", source.source) for source in config.data.train]
        named += [
            (f"evaluation set {name}", dataset.source)
            for name, dataset in config.evaluation.sets.items()
        ]
        for role, source in named:
            path = root / Path(source).expanduser()
            files = [path]
            if path.is_dir():
                files = sorted(path.rglob("*"))
            elif not path.is_file() and glob.has_magic(source):
                files = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]
            for file in files:
                if file.is_file():
                    yield file, role
        rewards = {**config.reward.functions}
        for name in config.evaluation.sets:
            rewards |= config.reward_of_set(name)
        named = [(f"reward {name}", name) for name in rewards]
        named += [
            (f"rule {rule.name}", rule.name)
            for rule in (config.algorithm.loss, config.algorithm.advantage)
        ]
        for role, name in named:
            module, colon, _ = name.partition(":")
            if colon:
                yield from module_files(module, role, root)


def module_files(module: str, role: str, root: Path) -> Iterator[tuple[Path, str]]:
    """Yield a module's file with ``role``, and the project files that it imports with the role
    ``imported by MODULE``, without importing them. Modules are looked up in ``root`` last.
    """
    search = [*filter(None, sys.path), str(root)]  # same order as in the scoring processes
    finder = _ImportFinder(
        [place for place in search if _is_of_project(Path(place))], excludes=LOPTUNE_PACKAGES
    )
    with contextlib.suppress(ImportError):  # reported later, when the module is imported
        finder.import_hook(module)
    for name, found in finder.modules.items():
        file = Path(getattr(found, "__file__", None) or "").resolve()
        if file.is_file():
            yield file, role if name == module else f"imported by {module}"


def _is_of_project(folder: Path) -> bool:
    # folders of `pip install --target` are not named site-packages
    installed = not _INSTALLED.isdisjoint(folder.parts) or any(folder.glob("*.dist-info"))
    return not installed and not folder.resolve().is_relative_to(sysconfig.get_path("stdlib"))


def _editable_project(name: str) -> list[str] | None:
    """Return the path to search for a top-level module of a project that was installed with ``pip
    install -e``; None for other modules.

    Such a project need not be on ``sys.path``: an import hook may find it instead.
    """
    spec = installed_spec(name)
    if spec is None or not spec.has_location or not spec.origin:
        return None
    file = Path(spec.origin)  # FOLDER/name.py or FOLDER/name/__init__.py
    is_package = spec.submodule_search_locations is not None
    folder = file.parent.parent if is_package else file.parent
    return [str(folder)] if _is_of_project(folder) else None


class _ImportFinder(ModuleFinder):
    """ModuleFinder that also supports namespace packages (folders without ``__init__.py``)."""

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """Return ModuleFinder's (file, path, description) tuple of a module."""
        spec = PathFinder.find_spec(name, path or self.path)
        if spec is None and path is None and name not in LOPTUNE_PACKAGES:
            path = _editable_project(name)
        if spec is None and name == "__init__":
            return io.BytesIO(), "", ("", "rb", _SOURCE)
        if spec is not None and spec.origin is None and spec.submodule_search_locations:
            return None, next(iter(spec.submodule_search_locations)), ("", "", _PACKAGE)
        return super().find_module(name, path, parent)

    def load_module(self, fqname: str, fp: Any, pathname: str, file_info: Any) -> Any:
        """Load a module, and record its file even if it has a syntax error, which its import
        reports later.
        """
        try:
            return super().load_module(fqname, fp, pathname, file_info)
        except SyntaxError:
            module: Any = self.add_module(fqname)
            module.__file__ = pathname
            return module
