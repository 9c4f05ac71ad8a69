"""Token filters: which completion tokens are updated at all, and which a loss singles out."""

from dataclasses import replace

import torch
from torch import Tensor

from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.inputs import Gather
from trainer.rules.selection import quantile
from trainer.types import TrainBatch


def low_probability_tokens(old_logprobs: Tensor, completion_mask: Tensor, eta: float) -> Tensor:
    """Return 1 at completion tokens with ``pi_old(token) < eta`` [arXiv:2505.12929, section 4.2],
    [B, T].
    """
    return (old_logprobs.exp() < eta).to(completion_mask.dtype) * completion_mask


def high_entropy_tokens(batch: TrainBatch, share: float, gather: Gather) -> Tensor:
    """Return 1 at the completion tokens with the highest entropies [arXiv:2506.01939, section 5.1],
    [B, T].

    Those with an entropy of at least the ``1 - share`` quantile (linear interpolation) over the
    completion tokens of all ranks; equal ones are all kept. As TRL.
    """
    mask = batch.completion_mask
    assert batch.entropies is not None
    threshold = quantile(batch.entropies[mask.bool()], 1 - share, gather)
    return (batch.entropies.double() >= threshold).to(mask.dtype) * mask


def counted_tokens(batch: TrainBatch, config: AlgorithmConfig) -> Tensor:
    """Return 1 at the completion tokens that a mean over tokens is taken over, [B, T].

    With ``mask_truncated`` not those of completions that ran into the token limit, as in TRL, SkyRL
    and NeMo-RL. A mean over completions counts such a completion with a loss of 0, as in TRL and
    SkyRL.
    """
    mask = batch.completion_mask
    return mask * (1 - config.mask_truncated * batch.truncated.to(mask, non_blocking=True))[:, None]


def select_tokens(
    batch: TrainBatch, config: AlgorithmConfig, gather: Gather = lambda items: items
) -> Tensor:
    """Return 1 at the completion tokens that the step may update, [B, T].

    Policy loss and KL penalty of the others are 0; loss denominators count `counted_tokens`. Tokens
    without advantage, as in groups whose completions all score alike, have no gradient but that of
    a penalty in the loss: without one they are left out.
    """
    tokens = counted_tokens(batch, config)
    if config.token_filter == "high_entropy":
        tokens = tokens * high_entropy_tokens(batch, config.entropy_share, gather)
    elif config.token_filter != "none":
        low = low_probability_tokens(batch.old_logprobs, tokens, config.lopti_eta)
        tokens = low if config.token_filter == "drop_high" else tokens - low
    if not config.has_penalty:
        tokens = tokens * (batch.advantages != 0)
    return tokens


def choose_tokens(
    batch: TrainBatch,
    config: AlgorithmConfig,
    generator: torch.Generator | None = None,
    gather: Gather = lambda items: items,
) -> TrainBatch:
    """Return the scored batch, advantages before AR, with the tokens that the loss singles out, if
    it does.
    """
    return replace(
        batch, chosen=config.loss.choose(batch, counted_tokens(batch, config), gather, generator)
    )
