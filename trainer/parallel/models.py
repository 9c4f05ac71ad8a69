"""The models of a run on its ranks: the policy with its optimizer, and the reference."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module
from transformers import PreTrainedModel

from trainer.config.optim import OptimConfig
from trainer.config.schema import TrainConfig
from trainer.parallel.device import compute_dtype
from trainer.parallel.ranks import Parallel
from trainer.policy.adapters import adapter_off, add_adapter
from trainer.policy.kept_forward import KeptForward
from trainer.policy.load import frozen_copy, load_policy
from trainer.policy.logprobs import LogprobModel, check_logits, tokens_per_chunk


@dataclass(frozen=True)
class Models:
    """The models of a run and the optimizer of the policy."""

    causal_lm: PreTrainedModel  # holds the policy's weights
    policy: Module  # its `LogprobModel`, wrapped for data parallelism where the strategy does
    optimizer: Any
    reference: Module | None  # the policy of before training; None without a KL coefficient
    stored_dtype: torch.dtype  # of the weights that are trained
    packs_rows: bool  # whether rows with a common prompt share its computation
    parallel: Parallel
    kept_forward: KeptForward | None  # None where no forward is used twice

    def whole_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the policy's parameters are whole on this rank, to be read."""
        return self.parallel.full_parameters(self.policy)


def load_frozen(config: TrainConfig, device: torch.device) -> PreTrainedModel:
    """Load the policy to be sampled from alone; raises what ``load_policy`` does."""
    dtype = compute_dtype(config.model, device)
    return load_policy(config.model, device, dtype).requires_grad_(False)


def load_models(config: TrainConfig, parallel: Parallel) -> Models:
    """Load policy and reference and make the optimizer.

    Raises:
        MissingError: no such model.
        ConfigError: an architecture whose log-probabilities would be wrong.
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
        torch.manual_seed(config.seed)  # the same adapter however the ranks have loaded the model
        add_adapter(
            causal_lm,
            config.model.lora,
            stored_dtype,
            config.model.name_or_path,
            config.model.revision,
        )
    elif with_reference:
        reference = _reference(config, causal_lm, stored_dtype, parallel)
    scores = logprob_model(causal_lm, config, stored_dtype)
    policy, optimizer = parallel.prepare(scores, _adamw(causal_lm, config.optim))
    if with_adapter and with_reference:
        reference = WithoutAdapter(policy, causal_lm)
    # A wrapped policy may run no other forward before a backward, and dropout is for updates alone.
    computed_again = policy is scores and not config.model.lora.dropout
    # Lopti's first pass often lacks some rows; what a GPU would gain, and what memory it takes
    # there, is not measured.
    keeps = computed_again and not config.algorithm.isolates and parallel.device.type == "cpu"
    kept_forward = KeptForward() if keeps else None
    models = Models(
        causal_lm,
        policy,
        optimizer,
        reference,
        stored_dtype,
        scores.packs_rows,
        parallel,
        kept_forward,
    )
    with models.whole_weights():
        check_logits(causal_lm)
    return models


class WithoutAdapter(Module):
    """The reference of a policy with an adapter: its own weights with the adapter off, no second
    copy.
    """

    def __init__(self, policy: Module, causal_lm: PreTrainedModel) -> None:
        super().__init__()
        # a tuple keeps them out of this module's parameters
        self._owned_elsewhere = (policy, causal_lm)

    def forward(self, *inputs: Any) -> Any:
        """Call the `LogprobModel` with its adapter off."""
        policy, causal_lm = self._owned_elsewhere
        with adapter_off(causal_lm):
            return policy(*inputs)


def logprob_model(
    causal_lm: PreTrainedModel, config: TrainConfig, stored_dtype: torch.dtype
) -> LogprobModel:
    """Return a causal language model as the run scores with it: at its temperature, in its dtype,
    in its chunks.
    """
    vocabulary = causal_lm.config.get_text_config().vocab_size
    in_float32 = stored_dtype == torch.float32  # then autocast computes in the model's dtype
    return LogprobModel(
        causal_lm,
        config.rollout.temperature,
        tokens_per_chunk(vocabulary, causal_lm.device.type == "cuda"),
        compute_dtype(config.model, causal_lm.device) if in_float32 else torch.float32,
        config.algorithm.loss.proxy_min_p,
    )


def _loaded_dtype(
    config: TrainConfig, stored_dtype: torch.dtype, parallel: Parallel
) -> torch.dtype:
    """Return the dtype a model is loaded in: frozen weights need no float32; DeepSpeed wants one
    dtype.
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
        fused=True,  # the same arithmetic in one pass over the parameters
    )


def _reference(
    config: TrainConfig, causal_lm: PreTrainedModel, stored_dtype: torch.dtype, parallel: Parallel
) -> Module:
    if parallel.shards_parameters:  # no rank has a whole model to copy
        torch.manual_seed(config.seed)
        reference = load_policy(config.model, parallel.device, stored_dtype)
    else:
        reference = frozen_copy(causal_lm, compute_dtype(config.model, parallel.device))
    scores = logprob_model(reference.requires_grad_(False), config, stored_dtype)
    return parallel.prepare_frozen(scores.eval())
