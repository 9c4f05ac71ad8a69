"""The models of a run on its ranks: the policy with its optimizer, and the reference."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from trainer.config.schema import OptimConfig, TrainConfig
from trainer.parallel.device import compute_dtype
from trainer.parallel.ranks import Parallel
from trainer.policy.load import frozen_copy, load_policy
from trainer.policy.logprobs import LogprobModel, check_logits, tokens_per_chunk


@dataclass(frozen=True)
class Models:
    """What `load_models` makes."""

    causal_lm: PreTrainedModel  # holds the policy's weights
    policy: nn.Module  # its `LogprobModel`, wrapped for data parallelism where the strategy does
    optimizer: Any
    reference: nn.Module | None  # the frozen policy of before training; None without a KL coefficient
    stored_dtype: torch.dtype  # of the policy's weights
    packs_rows: bool  # whether rows with a common prompt share its computation
    parallel: Parallel

    @property
    def is_wrapped(self) -> bool:
        """Whether the strategy has wrapped the policy."""
        return not isinstance(self.policy, LogprobModel)

    def whole_weights(self) -> AbstractContextManager[None]:
        """A context in which the policy's parameters are whole on this rank, to be read."""
        return self.parallel.full_parameters(self.policy)


def load_models(config: TrainConfig, parallel: Parallel) -> Models:
    """Load policy and reference and make the optimizer.

    Raises:
        MissingError: no such model.
        ConfigError: an architecture whose log-probabilities would be wrong.
    """
    torch.manual_seed(config.seed)
    stored_dtype = parallel.stored_dtype(compute_dtype(config.model, parallel.device))
    causal_lm = load_policy(config.model, parallel.device, stored_dtype)
    reference = _reference(config, causal_lm, stored_dtype, parallel) if config.algorithm.kl_coef > 0 else None
    scores = logprob_model(causal_lm, config, stored_dtype)
    policy, optimizer = parallel.prepare(scores, _adamw(causal_lm, config.optim))
    models = Models(causal_lm, policy, optimizer, reference, stored_dtype, scores.packs_rows, parallel)
    with models.whole_weights():
        check_logits(causal_lm)
    return models


def logprob_model(causal_lm: PreTrainedModel, config: TrainConfig, stored_dtype: torch.dtype) -> LogprobModel:
    """A causal language model as the run scores with it: at its temperature, in its dtype, in its chunks."""
    vocabulary = causal_lm.config.get_text_config().vocab_size
    in_float32 = stored_dtype == torch.float32  # then autocast computes in the model's dtype
    return LogprobModel(
        causal_lm,
        config.rollout.temperature,
        tokens_per_chunk(vocabulary, config.optim.logits_chunk_mb, causal_lm.device.type == "cuda"),
        compute_dtype(config.model, causal_lm.device) if in_float32 else torch.float32,
    )


def _adamw(causal_lm: PreTrainedModel, config: OptimConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        causal_lm.parameters(),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,  # the same arithmetic in one pass over the parameters
    )


def _reference(
    config: TrainConfig, causal_lm: PreTrainedModel, stored_dtype: torch.dtype, parallel: Parallel
) -> nn.Module:
    if parallel.shards_parameters:  # no rank has a whole model to copy
        torch.manual_seed(config.seed)
        reference = load_policy(config.model, parallel.device, stored_dtype)
    else:
        reference = frozen_copy(causal_lm, compute_dtype(config.model, parallel.device))
    scores = logprob_model(reference.requires_grad_(False), config, stored_dtype)
    return parallel.prepare_frozen(scores.eval())
