"""Low-Probability Token Isolation (Lopti): the token mask of each pass."""

import torch
from torch import Tensor

from trainer.algorithm.token_filters import low_probability_tokens, select_tokens
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.inputs import Gather
from trainer.types import TrainBatch


def isolation_passes(
    batch: TrainBatch,
    config: AlgorithmConfig,
    generator: torch.Generator | None = None,
    gather: Gather = lambda items: items,
) -> list[Tensor]:
    """Return the token mask [B, T] of every pass over the rollout batch, in order.

    Without Lopti there is one pass over the tokens of `select_tokens`. With Lopti, the first pass
    updates the low-probability tokens and the second updates the rest with the updated policy
    [arXiv:2505.12929, algorithm 1]. Both passes use the ``old_logprobs`` from before the first. The
    masks do not change the loss denominators. ``lopti_split: random`` draws the same number of
    tokens at random from ``generator`` for the first pass.
    """
    tokens = select_tokens(batch, config, gather)
    if not config.isolates:
        return [tokens]
    low = low_probability_tokens(batch.old_logprobs, tokens, config.lopti_eta)
    if config.lopti_split == "random":
        low = _random_subset(tokens, int(low.sum()), generator)
    high = tokens - low
    ordered = [low, high] if config.lopti_order == "low_first" else [high, low]
    # one transfer to the host, where `run_pass` selects rows
    return list(torch.stack(ordered).cpu())


def _random_subset(mask: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
    candidates = mask.nonzero()
    drawn = torch.randperm(len(candidates), generator=generator)[:size]
    subset = torch.zeros_like(mask)
    subset[candidates[drawn.to(mask.device)].unbind(dim=1)] = 1
    return subset
