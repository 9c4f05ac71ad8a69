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
    assert batch.entropies is not None
    own = batch.entropies[mask.bool()].double()
    everywhere = torch.tensor(gather(own.tolist()), dtype=torch.float64)
    if not len(everywhere):
        return torch.zeros_like(mask)
    place = (1 - share) * (len(everywhere) - 1)
    values = everywhere.sort().values
    low, high = values[int(place)], values[min(int(place) + 1, len(values) - 1)]
    threshold = low + (place - int(place)) * (high - low)
    return (batch.entropies.double() >= threshold).to(mask.dtype) * mask


def tokens_by_surprisal(batch: TrainBatch, low: float, high: float) -> Tensor:
    """1 at completion tokens whose relative surprisal index lies in a range [arXiv:2606.31575], [B, T].

    ``low <= -log pi_old(token) / H <= high`` with the entropy H of the distribution it was drawn from, whose mean
    surprisal H is. Below are tokens that say nothing new, above those of the tail.
    """
    assert batch.entropies is not None
    surprisal = -batch.old_logprobs
    kept = (surprisal >= low * batch.entropies) & (surprisal <= high * batch.entropies)
    return kept.to(batch.completion_mask.dtype) * batch.completion_mask


TOKEN_FILTERS: dict[str, TokenFilter] = {
    "none": lambda batch, config, gather: batch.completion_mask,
    "drop_high": lambda batch, config, gather: low_probability_tokens(
        batch.old_logprobs, batch.completion_mask, config.lopti_eta
    ),
    "drop_low": lambda batch, config, gather: (
        batch.completion_mask - low_probability_tokens(batch.old_logprobs, batch.completion_mask, config.lopti_eta)
    ),
    "high_entropy": lambda batch, config, gather: high_entropy_tokens(batch, config.entropy_share, gather),
    "rsi": lambda batch, config, gather: tokens_by_surprisal(batch, config.rsi_low, config.rsi_high),
}


def counted_tokens(batch: TrainBatch, config: AlgorithmConfig) -> Tensor:
    """1 at the completion tokens that a mean over tokens is taken over, [B, T].

    With ``mask_truncated`` not those of completions that ran into the token limit, as in TRL, SkyRL and NeMo-RL. A
    mean over completions counts such a completion with a loss of 0, as in TRL and SkyRL.
    """
    if config.mask_truncated:
        return batch.completion_mask * (1 - batch.truncated.to(batch.completion_mask, non_blocking=True))[:, None]
    return batch.completion_mask


def counted_lengths(batch: TrainBatch, config: AlgorithmConfig) -> Tensor:
    """How many tokens of each completion `counted_tokens` counts, [B] on the host."""
    return batch.completion_lengths * (1 - batch.truncated) if config.mask_truncated else batch.completion_lengths


def select_tokens(batch: TrainBatch, config: AlgorithmConfig, gather: Gather = lambda items: items) -> Tensor:
    """1 at the completion tokens that the step may update, [B, T].

    Policy loss and KL penalty of the others are 0; loss denominators count `counted_tokens`. Tokens without
    advantage, as in groups whose completions all score alike, have no gradient but that of a penalty in the loss:
    without one they are left out.
    """
    tokens = TOKEN_FILTERS[config.token_filter](batch, config, gather) * counted_tokens(batch, config)
    if not config.has_penalty:
        tokens = tokens * (batch.advantages != 0)
    return tokens
