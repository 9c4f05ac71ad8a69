"""The tokens that each pass of a step updates: token filters, and Low-Probability Token Isolation
(Lopti).
"""

from dataclasses import replace

import torch
from torch import Tensor

from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.interface import Gather
from trainer.rules.selection import quantile
from trainer.types import TrainBatch


def low_probability_tokens(old_logprobs: Tensor, completion_mask: Tensor, eta: float) -> Tensor:
    """Return the mask of completion tokens with ``pi_old(token) < eta`` [arXiv:2505.12929, section
    4.2], [B, T].
    """
    return (old_logprobs.exp() < eta).to(completion_mask.dtype) * completion_mask


def tokens_in_interval(
    old_logprobs: Tensor, completion_mask: Tensor, interval: tuple[float, float]
) -> Tensor:
    """Return the mask of completion tokens with ``low <= pi_old(token) < high``, [B, T]. A ``high``
    of 1 includes tokens with probability 1 [masks of arXiv:2505.12929, figure 6 (a)].
    """
    low, high = interval
    probabilities = old_logprobs.exp()
    inside = probabilities >= low
    if high < 1:
        inside &= probabilities < high
    return inside.to(completion_mask.dtype) * completion_mask


def high_entropy_tokens(batch: TrainBatch, fraction: float, gather: Gather) -> Tensor:
    """Return the mask of the completion tokens with the highest entropies [arXiv:2506.01939,
    section 5.1], [B, T].

    A token is kept if its entropy reaches the ``1 - fraction`` quantile (linear interpolation) over
    the completion tokens of all ranks. Ties are kept. Same as TRL.
    """
    mask = batch.completion_mask
    assert batch.entropies is not None
    threshold = quantile(batch.entropies[mask.bool()], 1 - fraction, gather)
    return (batch.entropies.double() >= threshold).to(mask.dtype) * mask


def denominator_mask(batch: TrainBatch, config: AlgorithmConfig) -> Tensor:
    """Return the mask of the completion tokens that count in a token mean, [B, T].

    Tokens are excluded if scoring of their completion failed or, with ``mask_truncated``, if their
    completion was truncated (as in TRL, SkyRL and NeMo-RL). A mean over completions still counts an
    excluded completion, with loss 0, as in TRL and SkyRL.
    """
    mask = batch.completion_mask
    return mask * counted_completions(batch, config).to(mask, non_blocking=True)[:, None]


def counted_completions(batch: TrainBatch, config: AlgorithmConfig) -> Tensor:
    """Return 1 for each completion whose tokens count, else 0: [B], on the host."""
    left_out = torch.maximum(config.mask_truncated * batch.truncated, batch.failed)
    return 1 - left_out


def select_tokens(
    batch: TrainBatch, config: AlgorithmConfig, gather: Gather = lambda items: items
) -> Tensor:
    """Return the mask of the completion tokens that the step may update, [B, T].

    The policy loss and KL penalty of other tokens are 0; loss denominators still count
    `denominator_mask`. Tokens with zero advantage, for example of zero-variance groups, have a
    gradient only through a penalty term. They are excluded if the loss has none.
    """
    tokens = denominator_mask(batch, config)
    if config.token_filter == "high_entropy":
        tokens = tokens * high_entropy_tokens(batch, config.entropy_fraction, gather)
    elif config.token_filter == "interval":
        tokens = tokens_in_interval(batch.old_logprobs, tokens, config.filter_interval)
    elif config.token_filter != "none":
        low = low_probability_tokens(batch.old_logprobs, tokens, config.lopti_eta)
        tokens = low if config.token_filter == "drop_high" else tokens - low
    if not config.has_regularizer:
        tokens = tokens * (batch.advantages != 0)
    return tokens


def select_loss_tokens(
    batch: TrainBatch,
    config: AlgorithmConfig,
    generator: torch.Generator | None = None,
    gather: Gather = lambda items: items,
) -> TrainBatch:
    """Return the batch with the mask of tokens that the loss selects in ``chosen``, which is None
    if the loss does not select tokens. Call before AR changes the advantages.
    """
    counted = denominator_mask(batch, config)
    with config.loss.errors_located():
        chosen = config.loss.choose(batch, counted, gather, generator)
    return replace(batch, chosen=chosen)


def isolation_passes(
    batch: TrainBatch,
    config: AlgorithmConfig,
    generator: torch.Generator | None = None,
    gather: Gather = lambda items: items,
) -> list[Tensor]:
    """Return the token mask [B, T] of every pass over the rollout batch, in order.

    Without Lopti there is one pass over the tokens of `select_tokens`. With Lopti, the first pass
    updates the low-probability tokens, and the second pass updates the other tokens with the
    updated policy [arXiv:2505.12929, algorithm 1]. ``lopti_order: high_first`` reverses the order.
    Both passes use the ``old_logprobs`` from before the first pass. The masks do not change the
    loss denominators. ``lopti_split: random`` replaces the low-probability tokens with the same
    number of random tokens, sampled with ``generator``.
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
