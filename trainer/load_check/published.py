"""Load a second copy of the published model: ``AutoModelForCausalLM`` in float32."""

from pathlib import Path

import psutil
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainer.config.model import ModelConfig
from trainer.policy.load import base_of, is_adapter, model_source

# maximum floating-point operations of the comparison: a few seconds
_OPERATIONS_PER_THREAD = 5e11
_OPERATIONS_ON_GPU = 1e14
_MEMORY_FRACTION = 0.5  # maximum fraction of the free memory for the weights of the copy
_LONGEST = 8192  # maximum tokens per row; the attention weights of longer rows would take gigabytes


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device [bytes]."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def place_for_copy(parameters: int, tokens: int, device: torch.device) -> torch.device | None:
    """Return the device on which a float32 copy can compute ``tokens`` tokens in seconds: the run's
    device or the CPU; None if it fits on neither.
    """
    for place in dict.fromkeys([device, torch.device("cpu")]):
        has_memory = 4 * parameters < _MEMORY_FRACTION * free_bytes(place)
        if has_memory and 2 * parameters * tokens <= _operations(place):
            return place
    return None


def longest_row(parameters: int, device: torch.device) -> int:
    """Return the maximum length of the longest row in tokens. This row may take a third of the
    operations that `_operations` allows.
    """
    return min(_LONGEST, int(_operations(device) / (3 * 2 * parameters)))


def _operations(device: torch.device) -> float:
    """Return the operations that a device performs in a few seconds; a forward pass takes two per
    parameter and token.
    """
    if device.type == "cuda":
        return _OPERATIONS_ON_GPU
    return _OPERATIONS_PER_THREAD * torch.get_num_threads()


def load_published(
    config: ModelConfig, device: torch.device, kernel: str = "eager"
) -> PreTrainedModel:
    """Load the published model; for an adapter, load its base model and let peft apply the adapter.

    The default is eager attention, because other kernels may not support what a model needs, such
    as soft-capped attention weights.
    """
    if is_adapter(config):
        import peft

        base = load_published(base_of(config), device, kernel)
        folder = Path(config.name_or_path).expanduser()
        adapted: PreTrainedModel = peft.PeftModel.from_pretrained(base, folder)
        return adapted.eval()
    source = model_source(config)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        source.name,
        revision=source.revision,
        trust_remote_code=config.trust_remote_code,
        use_safetensors=True,
        dtype=torch.float32,
        attn_implementation=kernel,
    )
    return model.eval().to(device)
