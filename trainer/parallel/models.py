"""Loading of the policy, its optimizer and the reference."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from transformers import PreTrainedModel

from trainer.config.optim import OptimConfig
from trainer.config.schema import TrainConfig
from trainer.parallel.device import compute_dtype
from trainer.parallel.ranks import Parallel
from trainer.policy.adapters import adapter_disabled, add_adapter
from trainer.policy.compiled_layers import CompiledLayers
from trainer.policy.load import frozen_copy, load_policy
from trainer.policy.logprobs import CachedForward, LogprobModel, tokens_per_chunk
from trainer.policy.packing import check_kernel
from trainer.types import RowLayout


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models of a run and the optimizer of the policy."""

    causal_lm: PreTrainedModel  # has the policy's weights
    policy: Module  # the policy's `LogprobModel`, wrapped if the strategy needs it
    optimizer: Any
    reference: Module | None  # the initial policy; None if kl_coef is 0
    stored_dtype: torch.dtype  # dtype of the trained weights
    layout: RowLayout  # layout of the rows of policy and reference
    parallel: Parallel
    cached_forward: CachedForward | None  # None if no forward pass can be reused

    def full_weights(self) -> AbstractContextManager[None]:
        """Return a context that gathers the policy's full parameters for reading."""
        return self.parallel.full_parameters(self.policy)


def recorded_base(name: str) -> str:
    """Return the base model's name for an adapter's config file: the absolute path of a local
    folder, so that the adapter works from any working directory, or else the name itself.
    """
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.exists() else name


def load_policy_for_inference(config: TrainConfig, device: torch.device) -> PreTrainedModel:
    """Load the policy for sampling only, without gradients. Raises like `load_policy`."""
    dtype = compute_dtype(config.model, device)
    return load_policy(config.model, device, dtype).requires_grad_(False)


def load_models(config: TrainConfig, parallel: Parallel) -> Models:
    """Load the policy and the reference, and create the optimizer.

    Raises:
        MissingError, StorageError: as in `load_policy`.
        ConfigError: as in `load_policy` or `add_adapter`, concatenated rows need another attention
            kernel on this GPU, or the model has no layers that could be compiled.
    """
    torch.manual_seed(config.seed)
    stored_dtype = parallel.stored_dtype(compute_dtype(config.model, parallel.device))
    with_adapter = config.model.lora.r > 0
    with_reference = config.algorithm.kl_coef > 0
    causal_lm = load_policy(
        config.model, parallel.device, _loaded_dtype(config, stored_dtype, parallel)
    )
    reference: Module | None = None
    if with_adapter:
        # same adapter initialization, whichever way the ranks loaded the model
        torch.manual_seed(config.seed)
        add_adapter(
            causal_lm,
            config.model.lora,
            dtype=stored_dtype,
            base=recorded_base(config.model.name_or_path),
            revision=config.model.revision,
        )
    elif with_reference:
        reference = _reference(config, causal_lm, stored_dtype, parallel)
    if config.model.packing:
        check_kernel(causal_lm)
    scores = logprob_model(causal_lm, config, stored_dtype)
    policy, optimizer = parallel.prepare(scores, _adamw(causal_lm, config.optim))
    if with_adapter and with_reference:
        reference = AdapterDisabled(policy, causal_lm)
    # Reuse needs an unwrapped policy (DDP allows no extra forward before a backward) and no dropout
    # (active only in updates).
    is_reusable = policy is scores and not config.model.lora.dropout
    # Lopti's first pass often skips some rows, so nothing could be reused. On a GPU, benefit and
    # memory cost have not been measured.
    uses_cache = is_reusable and not config.algorithm.isolates and parallel.device.type == "cpu"
    return Models(
        causal_lm=causal_lm,
        policy=policy,
        optimizer=optimizer,
        reference=reference,
        stored_dtype=stored_dtype,
        layout=scores.layout,
        parallel=parallel,
        cached_forward=CachedForward() if uses_cache else None,
    )


class AdapterDisabled(Module):
    """Reference policy that reuses the policy's weights with the adapter disabled."""

    def __init__(self, policy: Module, causal_lm: PreTrainedModel) -> None:
        super().__init__()
        # in a tuple, so that their parameters do not become parameters of this module
        self._policy_and_model = (policy, causal_lm)

    def forward(self, *inputs: Any) -> Any:
        """Run the `LogprobModel` with the adapter disabled."""
        policy, causal_lm = self._policy_and_model
        with adapter_disabled(causal_lm):
            return policy(*inputs)


def logprob_model(
    causal_lm: PreTrainedModel, config: TrainConfig, stored_dtype: torch.dtype
) -> LogprobModel:
    """Wrap a causal language model in a `LogprobModel` with the run's temperature, compute dtype
    and chunk size.
    """
    vocabulary = causal_lm.config.get_text_config().vocab_size
    autocast_dtype = torch.float32  # no autocast
    if stored_dtype == torch.float32:
        autocast_dtype = compute_dtype(config.model, causal_lm.device)
    return LogprobModel(
        causal_lm,
        temperature=config.rollout.temperature,
        chunk_tokens=tokens_per_chunk(vocabulary, causal_lm.device.type == "cuda"),
        compute_dtype=autocast_dtype,
        token_statistic=config.algorithm.loss.token_statistic,
        in_line=config.model.packing,
        compiled=CompiledLayers(causal_lm) if config.model.compile == "layers" else None,
    )


def _loaded_dtype(
    config: TrainConfig, stored_dtype: torch.dtype, parallel: Parallel
) -> torch.dtype:
    """Return the dtype to load the model in. Frozen weights do not need float32, but DeepSpeed
    needs a single dtype.
    """
    if config.model.lora.r == 0 or config.parallel.strategy == "deepspeed":
        return stored_dtype
    return compute_dtype(config.model, parallel.device)


def _adamw(causal_lm: PreTrainedModel, config: OptimConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        [parameter for parameter in causal_lm.parameters() if parameter.requires_grad],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,  # same arithmetic in one pass over the parameters
    )


def _reference(
    config: TrainConfig, causal_lm: PreTrainedModel, stored_dtype: torch.dtype, parallel: Parallel
) -> Module:
    if parallel.shards_parameters:  # no rank has the full model to copy
        torch.manual_seed(config.seed)
        reference = load_policy(config.model, parallel.device, stored_dtype)
    else:
        # compiled layers are bitwise equal only if their weights have the same dtype
        compiled = config.model.compile != "none"
        dtype = stored_dtype if compiled else compute_dtype(config.model, parallel.device)
        reference = frozen_copy(causal_lm, dtype)
    scores = logprob_model(reference.requires_grad_(False), config, stored_dtype)
    return parallel.prepare_frozen(scores.eval())
