"""Low-rank adapters of linear layers: ``W x + s B A x`` with W frozen [arXiv:2106.09685], in peft's
own layers.

They are put into the model in place, so that it stays the class it is. Weights that sampling or
vLLM needs whole are merged one at a time; no second copy of the model exists.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import Module, functional
from transformers import PreTrainedModel

from trainer.config.model import ALL_LINEAR, LoraConfig
from trainer.config.yaml_document import nearest
from trainer.errors import ConfigError, MissingError, StorageError, first_line

SETTINGS_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_NAME = "default"  # peft's, of the only adapter of a model
_PREFIX = "base_model.model."  # of names in peft's files
_FACTOR = ".lora_"  # part of the names of an adapter's parameters


class AdapterDropout(nn.Dropout):
    """Drops where a gradient is wanted: scoring a batch and updating on it happen in the same mode
    of a model.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return the input, a share of it 0 and the rest scaled up."""
        return functional.dropout(input, self.p, training=torch.is_grad_enabled())


def add_adapter(
    model: PreTrainedModel,
    settings: LoraConfig,
    dtype: torch.dtype = torch.float32,
    base: str | None = None,
    revision: str | None = None,
) -> None:
    """Freeze a model and put a new adapter into its linear layers, which changes nothing until it
    is trained.

    ``base`` and ``revision`` name what the model was loaded from, for the adapter's files.

    Raises:
        ConfigError: a target module that the model does not have.
    """
    import peft

    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        revision=revision,
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=_targets(model, settings.target_modules),
        use_rslora=settings.rslora,
    )
    peft.inject_adapter_in_model(config, model, _NAME)
    for layer in _layers(model):
        layer.lora_A.to(dtype)
        layer.lora_B.to(dtype)
        if settings.dropout:
            layer.lora_dropout[_NAME] = AdapterDropout(settings.dropout)


def has_adapter(model: Module) -> bool:
    """Return whether the model has an adapter."""
    return bool(_layers(model))


@contextmanager
def adapter_off(model: Module) -> Iterator[None]:
    """Let the model compute as it did before it had an adapter, exactly."""
    layers = _layers(model)
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


class BaseParameter(NamedTuple):
    """A parameter of the model under the name it has without an adapter."""

    name: str
    parameter: nn.Parameter
    layer: Any  # the adapted layer whose weight it is, else None

    @property
    def parts(self) -> list[nn.Parameter]:
        """All that decides the merged weight."""
        if self.layer is None:
            return [self.parameter]
        return [self.parameter, self.layer.lora_A[_NAME].weight, self.layer.lora_B[_NAME].weight]

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Return ``W + s B A`` in W's dtype, added in float32; W itself, detached, where there is
        no adapter.
        """
        weight = self.parameter.detach()
        if self.layer is None:
            return weight
        change: Tensor = self.layer.get_delta_weight(_NAME)
        return change.float().add(weight).to(weight.dtype)


def base_parameters(model: Module) -> Iterator[BaseParameter]:
    """Yield every parameter of the model but the adapter's; tied ones once."""
    for name, parameter in model.named_parameters():
        if _FACTOR in name:
            continue
        owner, base, _ = name.partition(".base_layer.weight")
        layer = model.get_submodule(owner) if base else None
        yield BaseParameter(name.replace(".base_layer.", "."), parameter, layer)


def base_layer(module: Module) -> Module:
    """Return the layer that an adapter was put around; the module itself where there is none."""
    base: Module = getattr(module, "base_layer", module)
    return base


def adapter_tensors(model: Module) -> dict[str, Tensor]:
    """Return the adapter's parameters under their names in peft's files."""
    return {
        _PREFIX + name.replace(f".{_NAME}.", "."): parameter
        for name, parameter in model.named_parameters()
        if _FACTOR in name
    }


def save_adapter_settings(model: Any, folder: Path) -> None:
    """Write ``adapter_config.json``."""
    model.peft_config[_NAME].save_pretrained(folder)


@torch.no_grad()
def load_adapter(model: Module, folder: Path) -> None:
    """Copy an adapter's weights from its file into the model's adapter.

    Raises:
        StorageError: it is of other layers or another rank.
    """
    expected = adapter_tensors(model)
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
        stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        if stored != {name: tuple(tensor.shape) for name, tensor in expected.items()}:
            raise StorageError(
                "the checkpoint's adapter has other layers or another rank",
                str(folder),
                "resume with the configuration the run was started with",
            )
        for name, tensor in expected.items():
            tensor.copy_(file.get_tensor(name))


def adapter_base(folder: Path) -> tuple[str, str | None]:
    """Name and revision of the model that an adapter's folder was made for.

    Raises:
        MissingError: it does not say, is no low-rank adapter, or has no safetensors weights.
    """
    file = folder / SETTINGS_FILE
    try:
        settings = json.loads(file.read_text("utf-8"))
        kind = settings["peft_type"]
        name = settings["base_model_name_or_path"]
        revision = settings.get("revision")
    except (ValueError, KeyError, TypeError):
        kind = None
        name = None
        revision = None
    if kind != "LORA" or not isinstance(name, str) or not isinstance(revision, str | None):
        raise MissingError(
            "the folder is not a low-rank adapter that names its base model",
            str(file),
            "give a folder saved by peft",
        )
    if not (folder / WEIGHTS_FILE).is_file():
        raise MissingError(
            f"no {WEIGHTS_FILE} in {folder}", "model.name_or_path", "save it with safetensors"
        )
    return name, revision


def with_adapter_merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Return the model with the adapter of a folder added to its weights, in place.

    Raises:
        ConfigError: the weights are in parts (ZeRO stage 3).
        MissingError: the adapter is not this model's, or damaged.
    """
    import peft

    if model.get_input_embeddings().weight.dim() != 2:
        raise ConfigError(
            "an adapter cannot be merged into weights that are in parts",
            "model.name_or_path, parallel.zero_stage",
            "merge it first: trainer export NAME --merge",
        )
    try:
        merged: PreTrainedModel = peft.PeftModel.from_pretrained(model, folder).merge_and_unload()
    except (ValueError, RuntimeError, KeyError, OSError, SafetensorError) as error:
        raise MissingError(
            f"the adapter does not fit its base model: {first_line(error)}",
            str(folder),
            "check what it was made for",
        ) from error
    return merged.requires_grad_(True)


def _targets(model: PreTrainedModel, wanted: list[str]) -> list[str]:
    """Return the last parts of the names of the layers to adapt, those of the configuration
    checked.
    """
    output = model.get_output_embeddings()
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not output
    ]
    there = sorted({name.rpartition(".")[2] for name in linear})
    if wanted == [ALL_LINEAR]:
        return there
    for target in wanted:
        if target not in there:
            key = "model.lora.target_modules"
            raise ConfigError(
                f"{target} is no linear layer before the output of {type(model).__name__}",
                key,
                nearest(target, [*there, ALL_LINEAR]),
                key,
            )
    return wanted


def _layers(model: Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "lora_A")]
