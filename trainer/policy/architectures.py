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


@dataclass(frozen=True)
class Architecture:
    """The fields of a ``config.json`` that determine a model's memory."""

    parameters: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool = True
    model_type: str = "qwen2"

    def settings(self) -> dict[str, Any]:
        """Return the fields under their names in ``config.json``."""
        return {name: value for name, value in vars(self).items() if name != "parameters"}


_QWEN_0_5B = Architecture(494_032_768, 896, 4864, 24, 14, 2, 151_936)
_QWEN_1_5B = Architecture(1_543_714_304, 1536, 8960, 28, 12, 2, 151_936)
_QWEN_3B = Architecture(3_085_938_688, 2048, 11008, 36, 16, 2, 151_936)
_QWEN_7B = Architecture(7_615_616_512, 3584, 18944, 28, 28, 4, 152_064, tie_word_embeddings=False)

KNOWN = {
    "smollm2-135m": Architecture(134_515_008, 576, 1536, 30, 9, 3, 49_152, model_type="llama"),
    **{
        f"Qwen/Qwen2.5-{size}{suffix}": architecture
        for size, architecture in (
            ("0.5B", _QWEN_0_5B),
            ("1.5B", _QWEN_1_5B),
            ("3B", _QWEN_3B),
            ("7B", _QWEN_7B),
        )
        for suffix in ("", "-Instruct")
    },
    "Qwen/Qwen2.5-7B-Instruct-1M": _QWEN_7B,
}


def model_size(name: str) -> ModelSize | None:
    """Return the size of a known model, of one in a folder or of one that the hub's cache holds;
    None for any other.
    """
    if name in KNOWN:
        return ModelSize(KNOWN[name].settings(), KNOWN[name].parameters)
    file = _config_file(name)
    if file is not None and file.stat().st_size > MAX_SETTINGS_BYTES:
        return None
    parameters = file and sum(_tensor_elements(path) for path in file.parent.glob("*.safetensors"))
    if file is None or not parameters:
        return None
    return ModelSize(json.loads(file.read_text(encoding="utf-8")), parameters)


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
    """Elements of all tensors of a safetensors file, from its header: eight bytes of length, then
    JSON.
    """
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(
        math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"
    )
