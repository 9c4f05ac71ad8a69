"""Sizes of models, known without their weights and, for those of the presets, without the hub.

The numbers are those of the models' published ``config.json``.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = "tiny"  # the name of the built-in model
MAX_SETTINGS_BYTES = 8 << 20  # of a config.json and its like
TINY_FOLDER = Path(__file__).with_name("tiny")
# Float32 logits that exist together, on a GPU and on a CPU: its caches favor few, and a GPU is idle
# between chunks.
CHUNK_BYTES = {True: 2**30, False: 2**27}


@dataclass(frozen=True)
class ModelSize:
    """A model without its weights."""

    settings: dict[str, Any]  # config.json
    parameters: int


# name -> its size, by the fields of its `config.json` that determine a model's memory
KNOWN: dict[str, ModelSize] = {}
for _model in json.loads(Path(__file__).with_name("known_models.json").read_text()):
    _size = ModelSize(_model["settings"], _model["parameters"])
    KNOWN |= dict.fromkeys(_model["names"], _size)


def model_size(name: str) -> ModelSize | None:
    """Return the size of a known model, of one in a folder or of one that the hub's cache holds;
    None for any other.
    """
    if name in KNOWN:
        return KNOWN[name]
    file = _config_file(name)
    if file is not None and file.stat().st_size > MAX_SETTINGS_BYTES:
        return None
    parameters = file and sum(_tensor_elements(path) for path in file.parent.glob("*.safetensors"))
    if file is None or not parameters:
        return None
    return ModelSize(json.loads(file.read_text("utf-8")), parameters)


def local_folder(name: str) -> Path:
    """Return the folder that a model's name stands for; it does not exist if the name is a
    hub's.
    """
    return TINY_FOLDER if name == TINY else Path(name).expanduser()


def _config_file(name: str) -> Path | None:
    folder = local_folder(name)
    if folder.is_dir() or name.count("/") != 1:
        return folder / "config.json" if (folder / "config.json").is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # no name that a repository of the hub could have
        return None
    return Path(cached) if isinstance(cached, str) else None


def _tensor_elements(path: Path) -> int:
    """Count the elements of all tensors of a safetensors file, from its header: eight bytes of
    length, then JSON.
    """
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(
        math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"
    )
