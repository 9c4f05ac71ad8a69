"""Frozen weights in 4 bits under an adapter [arXiv:2305.14314], by bitsandbytes; never run on a GPU."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from trainer.config.schema import ModelConfig
from trainer.errors import MissingError

_KEY = "model.quantization"


def check_installed(config: ModelConfig) -> None:
    """Refuse quantised weights where the package that makes them is missing.

    Raises:
        MissingError: it is not installed.
    """
    if config.quantization != "none" and find_spec("bitsandbytes") is None:
        raise MissingError(
            f"{config.quantization} weights need a GPU and bitsandbytes, which is not installed",
            _KEY,
            "pip install bitsandbytes, or model.quantization=none",
        )


def loading_options(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What `from_pretrained` is told beyond the rest, so that it quantises as it loads; empty where it does not.

    Args:
        config: of the model.
        device: of the rank.
        dtype: that is computed in.

    Raises:
        MissingError: bitsandbytes is not installed, or the device is no GPU.
    """
    if config.quantization == "none":
        return {}
    check_installed(config)
    if device.type != "cuda":
        raise MissingError(
            f"{config.quantization} weights need a GPU, and this rank computes on the {device.type.upper()}",
            _KEY,
            "model.quantization=none",
        )
    return quantized(dtype, device)


def quantized(dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Linear layers but the output in NF4, their scales quantised too, computed in ``dtype``."""
    from transformers import BitsAndBytesConfig

    how = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": how, "device_map": {"": device}}


def plain(weight: Tensor) -> Tensor:
    """A weight as numbers of its own shape, detached: dequantised where it is in 4 bits, else itself."""
    state = getattr(weight, "quant_state", None)
    if state is None:
        return weight.detach()
    from bitsandbytes.functional import dequantize_4bit

    whole: Tensor = dequantize_4bit(weight.data, state)
    return whole
