"""Model sizes: without any files for the presets' models, and for other models from
``config.json`` and the headers of the weight files.

The settings in ``known_models.json`` are from the models' published ``config.json``.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loptune.errors import MissingError
from loptune.files import json_object
from trainer.problems.sources import FROM_HERE

TINY = "tiny"  # the name of the built-in model
MAX_CONFIG_BYTES = 8 << 20  # size limit of config.json and similar files
TINY_FOLDER = Path(__file__).with_name("tiny")
# Maximum bytes of float32 logits per chunk, by on_gpu: small chunks suit CPU caches, large ones
# keep a GPU busy.
CHUNK_BYTES = {True: 2**30, False: 2**27}


@dataclass(frozen=True)
class ModelSize:
    """A model's config and parameter count."""

    settings: dict[str, Any]  # config.json
    parameters: int


# name -> size; only the config.json fields that determine memory
KNOWN: dict[str, ModelSize] = {}
for _model in json.loads(Path(__file__).with_name("known_models.json").read_text("utf-8")):
    _size = ModelSize(_model["settings"], _model["parameters"])
    KNOWN |= dict.fromkeys(_model["names"], _size)


def model_size(name: str) -> ModelSize | None:
    """Return the size of a built-in, local or Hub-cached model. Return None if it is not on this
    machine or its files are damaged, which loading the model reports.
    """
    if name in KNOWN:
        return KNOWN[name]
    file = _config_file(name)
    if file is None or file.stat().st_size > MAX_CONFIG_BYTES:
        return None
    from safetensors import SafetensorError  # not installed with every extra

    settings = json_object(file)
    try:
        parameters = sum(_tensor_elements(path) for path in file.parent.glob("*.safetensors"))
    except (SafetensorError, OSError):
        return None
    if settings is None or not parameters:
        return None
    return ModelSize(settings, parameters)


def local_folder(name: str) -> Path:
    """Return the folder for a model name. It does not exist if the name is a Hub name."""
    return TINY_FOLDER if name == TINY else Path(name).expanduser()


def no_such_folder(name: str) -> MissingError:
    """Return the error for a model name that is a path to a missing folder."""
    place = Path(name).expanduser().absolute()
    return MissingError(
        f"no such model folder: {name}",
        str(place),
        FROM_HERE,
        "model.name_or_path",
        code="no-such-model",
    )


def _config_file(name: str) -> Path | None:
    folder = local_folder(name)
    if folder.is_dir() or name.count("/") != 1:
        return folder / "config.json" if (folder / "config.json").is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # not a valid Hub repository name
        return None
    return Path(cached) if isinstance(cached, str) else None


def _tensor_elements(path: Path) -> int:
    """Count the elements of all tensors of a safetensors file, without reading the tensors."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        names = file.keys()
        return sum(math.prod(file.get_slice(name).get_shape()) for name in names)
