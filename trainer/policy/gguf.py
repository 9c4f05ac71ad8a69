"""Models in GGUF files: dequantised once into a folder that everything else loads like any other."""

import hashlib
import sys
import zipfile
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer.errors import MissingError, first_line
from trainer.policy.cache import cache_folder, ensure_folder, save_model

SUFFIX = ".gguf"


def ensure_converted(file: Path) -> Path:
    """The folder (float32 safetensors, tokenizer, chat template) made of a GGUF file on first use.

    A GGUF file is data: nothing in it is executed.

    Raises:
        MissingError: the file cannot be read as a model that transformers knows.
    """
    file = file.resolve()
    status = file.stat()
    digest = sha256(file, status.st_size, status.st_mtime_ns)
    return ensure_folder(cache_folder() / f"{file.stem}-{digest[:16]}", lambda folder: _convert(file, folder))


@cache  # of the size and time of change, too: the file is read again when it is another one
def sha256(file: Path, size: int, changed_ns: int) -> str:
    """Hash of a file's content, hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _convert(file: Path, folder: Path) -> None:
    print(f"converting {file.name}: about a minute, only once", file=sys.stderr, flush=True)
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except (OSError, ValueError, KeyError, ImportError, zipfile.BadZipFile) as error:
        raise MissingError(
            f"cannot read {file}: {first_line(error)}", "model.name_or_path", "give a GGUF file of a known model"
        ) from error
    # What is saved is no longer quantised; transformers refuses to save a model that says it is.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    save_model(model, tokenizer, folder)
