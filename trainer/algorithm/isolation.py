"""Low-Probability Token Isolation (Lopti): which tokens are updated in which pass."""

import torch
from torch import Tensor

from trainer.config.schema import AlgorithmConfig
from trainer.types import TrainBatch


def low_probability_tokens(old_logprobs: Tensor, completion_mask: Tensor, eta: float) -> Tensor:
    """1 at completion tokens with ``pi_old(token) < eta`` [arXiv:2505.12929, section 4.2], [B, T]."""
    return (old_logprobs.exp() < eta).to(completion_mask.dtype) * completion_mask


def isolation_passes(
    batch: TrainBatch, config: AlgorithmConfig, generator: torch.Generator | None = None
) -> list[Tensor]:
    """The token mask [B, T] of every pass over the rollout batch, in order.

    Without Lopti there is one pass with all completion tokens. With it the low-probability tokens are updated
    first and the rest with the updated policy. ``old_logprobs`` stay those of before the first pass. Loss
    denominators do not depend on the masks.

    Args:
        batch: completions with ``old_logprobs``.
        config: ``lopti_eta`` is the threshold; ``token_filter`` keeps one side only; ``lopti_split: random``
            moves as many tokens into the first pass as there are low ones, chosen at random.
        generator: source of the random split.
    """
    everything = batch.completion_mask
    if config.lopti_eta == 0:
        return [everything]
    low = low_probability_tokens(batch.old_logprobs, everything, config.lopti_eta)
    if config.lopti_split == "random":
        low = _random_subset(everything, int(low.sum()), generator)
    high = everything - low
    if config.token_filter != "none":
        return [low] if config.token_filter == "drop_high" else [high]
    return [low, high] if config.lopti_order == "low_first" else [high, low]


def _random_subset(mask: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
    candidates = mask.flatten().nonzero().squeeze(1)
    order = torch.randperm(len(candidates), generator=generator)
    subset = torch.zeros_like(mask.flatten())
    subset[candidates[order.to(candidates.device)[:size]]] = 1
    return subset.view_as(mask)
