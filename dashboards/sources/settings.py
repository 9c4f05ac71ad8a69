"""Read the settings that a program wrote next to its results."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from dashboards.sources.content import read_text
from loptune.errors import first_line
from loptune.foreign_yaml import MAX_BYTES, read_foreign_yaml

# in order of precedence
FILES = (
    "config.yaml", ".hydra/config.yaml", "config.yml", "params.json", "hparams.yaml", "args.yaml",
    "args.json", "config.json", "params.yaml", "hparams.json", "flags.json",
)  # fmt: skip
# prefixes of the columns that contain settings
SETTINGS_PREFIXES = (
    "params.", "config.", "hparams.", "params_", *(f"{name.split('/')[-1]}:" for name in FILES)
)  # fmt: skip
_OVERRIDES = ".hydra/overrides.yaml"
SETTINGS_FILE = re.compile(r"^[\w.-]+\.(?:ya?ml|json):")  # prefix of the key in a column name
MAX_JSON_BYTES = 1 << 20


def settings_beside(path: Path) -> dict[str, Any]:
    """Return the settings in the folder that contains ``path``, or else in that folder's parent, as
    columns ``FILE:KEY`` such as ``config.yaml:optim.lr``. For a file in the folder of a W&B run,
    the settings next to the ``wandb`` folder are added.

    Raises:
        ValueError: a settings file cannot be read.
        StorageError: a settings file is too large, or has another encoding than UTF-8 or UTF-16.
    """
    settings = _settings_in(path.parent, path.name)
    if "wandb" in path.parts[-4:-1]:  # RUN/wandb/run-ID/files/: the run's own settings, too
        own = _settings_in(path.parents[path.parts[::-1].index("wandb")], path.name)
        settings = settings | {key: value for key, value in own.items() if key not in settings}
    return settings or _settings_in(path.parent.parent, path.name)


def _settings_in(folder: Path, own: str) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    read: set[str] = set()
    for name in FILES:
        file = folder / name
        if file.name in read or file.name == own or not file.is_file():
            continue
        content = _content(file)
        if isinstance(content, Mapping):
            columns |= _columns(file.name, content)
            read.add(file.name)
        elif file.name == "config.yaml":
            raise ValueError(f"{name} in its folder is not a mapping of settings")
    overrides = folder / _OVERRIDES
    if not read and overrides.is_file():
        columns |= _columns(overrides.name, _overrides(_content(overrides)))
    return columns


def _content(file: Path) -> Any:
    is_json = file.suffix == ".json"
    text = read_text(file, MAX_JSON_BYTES if is_json else MAX_BYTES)
    try:
        return json.loads(text) if is_json else read_foreign_yaml(text)
    except (ValueError, RecursionError) as error:
        reason = first_line(error)
        raise ValueError(f"{file.name} in its folder cannot be read: {reason}") from None


def _columns(name: str, content: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the settings of a file with nested keys joined; W&B's ``{desc: ..., value: ...}`` are
    unwrapped.
    """
    plain: dict[str, Any] = {}
    for key, value in content.items():
        if key in ("_wandb", "wandb_version"):
            continue
        wrapped = (
            isinstance(value, Mapping) and "value" in value and set(value) <= {"desc", "value"}
        )
        plain[str(key)] = value["value"] if wrapped else value
    if not plain:
        return {}
    flat = pd.json_normalize(plain).iloc[0].to_dict()
    columns = {}
    for key, value in flat.items():
        columns[f"{name}:{key}"] = str(value) if isinstance(value, list | dict) else value
    return columns


def _overrides(content: Any) -> dict[str, str]:
    """Return Hydra's list of ``KEY=VALUE`` as a mapping."""
    pairs: dict[str, str] = {}
    if not isinstance(content, list):
        return pairs
    for item in content:
        key, equals, value = str(item).partition("=")
        if equals:
            pairs[key.lstrip("+~")] = value
    return pairs
