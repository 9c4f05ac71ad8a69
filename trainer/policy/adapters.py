"""LoRA adapters, ``W x + s B A x`` with frozen W [arXiv:2106.09685], built from peft's layers.

Adapters are injected in place, so the model keeps its class. Weights that vLLM needs merged are
merged one at a time, without a second copy of the model.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import Module, functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from loptune.errors import ConfigError, MissingError, StorageError, first_line, listed, warning_text
from loptune.files import json_object
from loptune.yaml_document import nearest
from trainer.config.model import ALL_LINEAR, LoraConfig

_log = logging.getLogger(__name__)

SETTINGS_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_NAME = "default"  # peft's name of a model's only adapter
_PREFIX = "base_model.model."  # prefix of parameter names in peft's files
# GPT-2 stores the weights of its linear layers transposed
_ADAPTABLE = (nn.Linear, Conv1D)
_FROZEN_FRACTION = 0.1  # fraction of frozen weights above which a warning is printed
_FACTOR = ".lora_"  # part of the name of every adapter parameter


class AdapterDropout(nn.Dropout):
    """Dropout that is active only with gradients enabled, because scoring and updates run in the
    same train/eval mode.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Apply dropout if gradients are enabled."""
        return functional.dropout(input, self.p, training=torch.is_grad_enabled())


def add_adapter(
    model: PreTrainedModel,
    settings: LoraConfig,
    dtype: torch.dtype = torch.float32,
    base: str | None = None,
    revision: str | None = None,
) -> None:
    """Freeze a model and inject a new adapter into its linear layers. The outputs do not change
    until the adapter is trained.

    The adapter's weights have ``dtype``. ``base`` and ``revision`` are recorded in its config file.

    Raises:
        ConfigError: unknown target module, no linear layer, or a layer that peft cannot adapt.
    """
    import peft

    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        revision=revision,
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=_targets(model, settings),
        use_rslora=settings.rslora,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    try:
        peft.inject_adapter_in_model(config, model, _NAME)
    except ValueError as error:  # layers that peft cannot adapt in this architecture
        key = "model.lora.target_modules"
        raise ConfigError(
            f"peft cannot adapt {type(model).__name__}: {first_line(error)}",
            key,
            f"choose the layers to adapt: {key}=[q_proj, v_proj]",
            key,
            code="layers-not-adaptable",
        ) from error
    for layer in _layers(model):
        layer.lora_A.to(dtype)
        layer.lora_B.to(dtype)
        if settings.dropout:
            layer.lora_dropout[_NAME] = AdapterDropout(settings.dropout)
    if settings.adapts_all:
        _warn_of_frozen(model)


def has_adapter(model: Module) -> bool:
    """Return whether the model has an adapter."""
    return bool(_layers(model))


@contextmanager
def adapter_disabled(model: Module) -> Iterator[None]:
    """Disable the adapter in this context; outputs are exactly the base model's."""
    layers = _layers(model)
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


class BaseParameter(NamedTuple):
    """A parameter of the base model, with the name that it has without an adapter."""

    name: str
    parameter: nn.Parameter
    layer: Any  # the adapted layer it belongs to, or None

    @property
    def parts(self) -> list[nn.Parameter]:
        """The parameters that determine the merged weight."""
        if self.layer is None:
            return [self.parameter]
        return [self.parameter, self.layer.lora_A[_NAME].weight, self.layer.lora_B[_NAME].weight]

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Return ``W + s B A``, summed in float32, in W's dtype; W itself (detached) without an
        adapter.
        """
        weight = self.parameter.detach()
        if self.layer is None:
            return weight
        change: Tensor = self.layer.get_delta_weight(_NAME)
        return change.float().add(weight).to(weight.dtype)


def base_parameters(model: Module) -> Iterator[BaseParameter]:
    """Yield every base model parameter; tied parameters once."""
    for name, parameter in model.named_parameters():
        if _FACTOR in name:
            continue
        owner, base, _ = name.partition(".base_layer.weight")
        layer = model.get_submodule(owner) if base else None
        yield BaseParameter(name.replace(".base_layer.", "."), parameter, layer)


def adapter_tensors(model: Module) -> dict[str, Tensor]:
    """Return the adapter's parameters by their names in peft's files."""
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
        StorageError: the file has different layers or a different rank.
    """
    expected = adapter_tensors(model)
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
        stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        if stored != {name: tuple(tensor.shape) for name, tensor in expected.items()}:
            raise StorageError(
                "the checkpoint's adapter has different layers or a different rank",
                str(folder),
                "resume with the configuration the run was started with",
                code="other-adapter",
            )
        for name, tensor in expected.items():
            tensor.copy_(file.get_tensor(name))


def adapter_base(folder: Path) -> tuple[str, str | None]:
    """Return name and revision of an adapter's base model; the revision is None if none is
    recorded.

    Raises:
        MissingError: not a LoRA adapter, no base model recorded, or no safetensors weights.
    """
    file = folder / SETTINGS_FILE
    settings = json_object(file) or {}
    name = settings.get("base_model_name_or_path")
    revision = settings.get("revision")
    is_lora = settings.get("peft_type") == "LORA"
    if not is_lora or not isinstance(name, str) or not isinstance(revision, str | None):
        raise MissingError(
            "the folder is not a LoRA adapter with a recorded base model",
            str(file),
            "use a folder saved by peft",
            code="no-adapter",
        )
    if not (folder / WEIGHTS_FILE).is_file():
        raise MissingError(
            f"no {WEIGHTS_FILE} in {folder}",
            "model.name_or_path",
            "save the adapter with safetensors",
            code="no-adapter-weights",
        )
    return name, revision


def merge_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge an adapter into the model's weights in place. Return the model, whose parameters are
    all trainable.

    Raises:
        ConfigError: the parameters are sharded (ZeRO stage 3).
        MissingError: the adapter does not match the model, or is damaged.
    """
    import peft

    if model.get_input_embeddings().weight.dim() != 2:
        raise ConfigError(
            "an adapter cannot be merged into sharded parameters",
            "model.name_or_path, parallel.zero_stage",
            "merge it first: trainer export NAME --merge",
            code="sharded-merge",
        )
    try:
        adapted = peft.PeftModel.from_pretrained(model, folder)
        # load again for the list of missing keys, which from_pretrained does not return
        loaded = adapted.load_adapter(folder, _NAME)
        _check_complete(loaded.missing_keys, loaded.unexpected_keys, folder)
        merged: PreTrainedModel = adapted.merge_and_unload()
    except (ValueError, RuntimeError, KeyError, OSError, SafetensorError) as error:
        raise MissingError(
            f"the adapter does not fit its base model: {first_line(error)}",
            str(folder),
            "check base_model_name_or_path in its adapter_config.json",
            code="adapter-does-not-fit",
        ) from error
    return merged.requires_grad_(True)


def _check_complete(missing: Sequence[str], unused: Sequence[str], folder: Path) -> None:
    """Raise if peft did not use some weights of an adapter's file, or found no weights for an
    adapted layer. peft only warns, and the policy would be missing a part of the adapter.
    """
    faults = []
    if missing:
        faults.append(f"its file lacks {listed(sorted(missing), 2)}")
    if unused:
        faults.append(f"its settings have no layer for {listed(sorted(unused), 2)}")
    if faults:
        raise MissingError(
            f"the adapter's weights do not match its settings: {'; '.join(faults)}",
            str(folder),
            f"save the adapter again with peft, or correct target_modules in its {SETTINGS_FILE}",
            code="adapter-incomplete",
        )


def _targets(model: PreTrainedModel, settings: LoraConfig) -> list[str]:
    """Return the names (last part) of the layers to adapt, after validation.

    Raises:
        ConfigError: the model has no linear layer, or none of a configured name.
    """
    output = model.get_output_embeddings()
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, _ADAPTABLE) and module is not output
    ]
    available = sorted({name.rpartition(".")[2] for name in linear})
    if not available:
        raise ConfigError(
            f"{type(model).__name__} has no linear layer that an adapter could change",
            "model.lora.r",
            "train the full weights with model.lora.r=0, or use another model",
            "model.lora.r",
            code="no-such-layer",
        )
    if settings.adapts_all:
        return available
    for target in settings.target_modules:
        if target not in available:
            key = "model.lora.target_modules"
            raise ConfigError(
                f"{type(model).__name__} has no linear layer named {target} (the output layer "
                "cannot be adapted)",
                key,
                f"list only layers: {ALL_LINEAR} cannot be combined with them"
                if target == ALL_LINEAR
                else nearest(target, [*available, ALL_LINEAR]),
                key,
                code="no-such-layer",
            )
    return settings.target_modules


def _warn_of_frozen(model: PreTrainedModel) -> None:
    """Warn if a large part of the weights is in no linear layer, such as the experts of a mixture
    of experts: transformers stores them as one tensor of three dimensions.
    """
    output = model.get_output_embeddings()
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding) or m is output]
    left_out = {id(p) for module in embeddings for p in module.parameters()}
    adapted = {id(p) for layer in _layers(model) for p in layer.parameters()}
    frozen = {}
    total = 0
    for name, parameter in model.named_parameters():
        size = getattr(parameter, "ds_numel", parameter.numel())  # sharded at ZeRO stage 3
        total += size
        is_matrix = len(getattr(parameter, "ds_shape", parameter.shape)) > 1
        if is_matrix and id(parameter) not in left_out | adapted:
            frozen[name] = size
    if sum(frozen.values()) > _FROZEN_FRACTION * total:
        kinds = sorted({re.sub(r"\.\d+\.", ".*.", name) for name in frozen})
        text = warning_text(
            f"{sum(frozen.values()) / total:.0%} of the weights get no adapter and stay frozen: "
            f"{listed(kinds, 4)}",
            "model.lora.target_modules",
            "train the full weights with model.lora.r=0 if these must be trained, too",
        )
        _log.warning("%s", text)


def _layers(model: Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "lora_A")]
