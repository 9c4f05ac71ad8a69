"""Token filters: which completion tokens are updated at all."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trainer.config.algorithm import AlgorithmConfig
from trainer.types import TrainBatch

Gather = Callable[[list[Any]], list[Any]]
TokenFilter = Callable[[TrainBatch, AlgorithmConfig, Gather], Tensor]


def low_probability_tokens(old_logprobs: Tensor, completion_mask: Tensor, eta: float) -> Tensor:
    """1 at completion tokens with ``pi_old(token) < eta`` [arXiv:2505.12929, section 4.2], [B, T]."""
    return (old_logprobs.exp() < eta).to(completion_mask.dtype) * completion_mask


def high_entropy_tokens(batch: TrainBatch, share: float, gather: Gather) -> Tensor:
    """1 at the completion tokens with the highest entropies [arXiv:2506.01939, section 5.1], [B, T].

    Those with an entropy of at least the ``1 - share`` quantile (linear interpolation) over the completion tokens
    of all ranks; equal ones are all kept. As TRL.
    """
    mask = batch.completion_mask
    own = batch.entropies[mask.bool()].double()
    everywhere = torch.tensor(gather(own.tolist()), dtype=torch.float64)
    if not len(everywhere):
        return torch.zeros_like(mask)
    place = (1 - share) * (len(everywhere) - 1)
    values = everywhere.sort().values
    low, high = values[int(place)], values[min(int(place) + 1, len(values) - 1)]
    threshold = low + (place - int(place)) * (high - low)
    return (batch.entropies.double() >= threshold).to(mask.dtype) * mask


TOKEN_FILTERS: dict[str, TokenFilter] = {
    "none": lambda batch, config, gather: batch.completion_mask,
    "drop_high": lambda batch, config, gather: low_probability_tokens(
        batch.old_logprobs, batch.completion_mask, config.lopti_eta
    ),
    "drop_low": lambda batch, config, gather: (
        batch.completion_mask - low_probability_tokens(batch.old_logprobs, batch.completion_mask, config.lopti_eta)
    ),
    "high_entropy": lambda batch, config, gather: high_entropy_tokens(batch, config.entropy_share, gather),
}


def select_tokens(batch: TrainBatch, config: AlgorithmConfig, gather: Gather = lambda items: items) -> Tensor:
    """1 at the completion tokens that the step may update, [B, T].

    Policy loss and KL penalty of the others are 0; loss denominators count all completion tokens. Tokens without
    advantage, as in groups whose completions all score alike, have no gradient but that of a KL penalty in the
    loss: without one they are left out.

    Args:
        batch: scored, with advantages.
        config: names the filter; with ``mask_truncated`` the completions that ran into the token limit are left
            out, with ``mask_zero_advantages`` tokens without advantage although they have a KL penalty.
        gather: the items of all ranks.
    """
    tokens = TOKEN_FILTERS[config.token_filter](batch, config, gather)
    if config.mask_truncated:
        tokens = tokens * (1 - batch.truncated)[:, None]
    has_penalty = config.kl_coef > 0 and config.kl_in_loss
    if config.mask_zero_advantages or not has_penalty:
        tokens = tokens * (batch.advantages != 0)
    return tokens
