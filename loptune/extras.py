"""Optional packages: the extras that install them, and the error if one is missing."""

import sys
from importlib.util import find_spec

from loptune.errors import MissingError

# import name of a package -> extra that installs it
EXTRA_OF = {
    "accelerate": "train",
    "aiohttp": "train",
    "anyio": "mcp",
    "datasets": "train",
    "deepspeed": "train",
    "gguf": "train",
    "huggingface_hub": "train",
    "math_verify": "train",
    "mcp": "mcp",
    "mlflow": "mlflow",
    "optuna": "optuna",
    "peft": "train",
    "pyarrow": "parquet",
    "ray": "sweep",
    "requests": "train",
    "safetensors": "train",
    "sqlalchemy": "mlflow",
    "tensorboard": "tensorboard",
    "tokenizers": "train",
    "torch": "train",
    "transformers": "train",
    "trl": "trl",
    "vllm": "vllm",
    "wandb": "wandb",
}


def require(package: str, where: str) -> None:
    """Check that an optional package is installed. ``where`` is the command, file or key that needs
    it.

    Raises:
        MissingError: the package is not installed.
    """
    if not is_installed(package):
        raise _missing(package, where)


def missing_extra(error: ModuleNotFoundError) -> MissingError | None:
    """Return the error for a missing package that an extra installs; None for any other module."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA_OF or is_installed(package):
        return None
    return _missing(package, "this environment")


def is_installed(package: str) -> bool:
    """Return whether a package can be imported. A folder with its name but without code does not
    count.
    """
    if package in sys.modules:
        return sys.modules[package] is not None
    found = find_spec(package)
    return found is not None and found.origin is not None


def _missing(package: str, where: str) -> MissingError:
    return MissingError(
        f"the package {package} is not installed",
        where,
        f"pip install 'loptune[{EXTRA_OF[package]}]'",
        code="missing-extra",
    )
