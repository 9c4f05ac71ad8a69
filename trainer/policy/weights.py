"""Trained weights (full or adapter) and optimizer state."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from loptune.errors import StorageError
from loptune.files import write_atomically
from trainer.config.model import ModelConfig
from trainer.policy.adapters import (
    WEIGHTS_FILE,
    adapter_tensors,
    has_adapter,
    load_adapter,
    save_adapter_settings,
)
from trainer.policy.load import model_source


def trained_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return the weights to checkpoint by name (no copies): those of the adapter, or else all."""
    return adapter_tensors(model) or model.state_dict(keep_vars=True)


def host_copy(tensor: Tensor) -> Tensor:
    """Return a copy in host memory."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def save_weights(folder: Path, model: PreTrainedModel, weights: dict[str, Tensor]) -> None:
    """Write the `trained_weights`: an adapter in peft format, a model in Hugging Face format."""
    if not has_adapter(model):
        model.save_pretrained(folder, state_dict=weights)
        return
    save_adapter_settings(model, folder)
    tensors = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
    save_file(tensors, folder / WEIGHTS_FILE, {"format": "pt"})


def stored_dtype(model: ModelConfig) -> str:
    """Return the dtype in which a model's weights are stored, such as ``bfloat16``; ``float32`` if
    its ``config.json`` does not contain one.

    Raises:
        MissingError: no such model.
    """
    source = model_source(model)
    config = AutoConfig.from_pretrained(
        source.name, revision=source.revision, trust_remote_code=model.trust_remote_code
    )
    return str(config.dtype or torch.float32).removeprefix("torch.")


def convert_weights(folder: Path, dtype: str) -> None:
    """Rewrite the floating-point tensors of a folder's ``*.safetensors`` in this dtype."""
    wanted = getattr(torch, dtype)
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        tensors = load_file(path)
        if all(tensor.dtype == wanted for tensor in tensors.values()):
            continue
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensors[name] = tensor.to(wanted)
        save_file(tensors, path, metadata)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        content = json.loads(index.read_text("utf-8"))
        content["metadata"] = content.get("metadata", {}) | {"total_size": size}
        write_atomically(index, json.dumps(content, indent=2) + "\n")


def weight_files(folder: Path, model: PreTrainedModel) -> list[Path]:
    """Return the files that contain the `trained_weights` in a checkpoint."""
    if has_adapter(model):
        return [folder / WEIGHTS_FILE]
    return sorted(folder.glob("model*.safetensors"))


def saved_names(model: PreTrainedModel) -> dict[str, list[str]]:
    """Return the names that a trained parameter may have in the `weight_files`, by its name in the
    model. Tied parameters have several, one of which is saved.
    """
    weights = trained_weights(model)
    names = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            names[name] = [saved for saved, tensor in weights.items() if tensor is parameter]
    return names


def load_weights(folder: Path, model: PreTrainedModel) -> None:
    """Load saved weights into the model.

    Raises:
        StorageError: missing or unexpected weights, or an adapter with different layers or a
            different rank.
    """
    if has_adapter(model):
        load_adapter(model, folder)
        return
    weights: dict[str, Tensor] = {}
    for path in weight_files(folder, model):
        weights |= load_file(path)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    state = model.state_dict()
    loaded = {state[name].data_ptr() for name in state if name in weights}
    # a missing weight may be tied to a loaded one
    lost = [name for name in missing if state[name].data_ptr() not in loaded]
    if lost or unexpected:
        raise StorageError(
            f"the checkpoint does not fit the model (missing {lost[:3]}, unexpected "
            f"{unexpected[:3]})",
            str(folder),
            "resume with the configuration the run was started with",
            code="checkpoint-does-not-fit",
        )


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return Adam's state as ``parameter name/key`` -> tensor, copied to host memory."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    tensors = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            tensors[f"{names[id(parameter)]}/{key}"] = host_copy(value)
    return tensors


def load_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Restore Adam's state from `optimizer_tensors`."""
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for name, tensor in tensors.items():
        parameter_name, key = name.rsplit("/", 1)
        parameter = parameters[parameter_name]
        # fused AdamW keeps its step counter on the parameter's device, too
        optimizer.state[parameter][key] = tensor.to(parameter.device)
