"""Low-Probability Token Isolation (Lopti): which tokens are updated in which pass."""

from dataclasses import replace

import torch
from torch import Tensor

from trainer.algorithm.asked import asked_tokens, tokens_to_compute
from trainer.algorithm.token_filters import Gather, low_probability_tokens, select_tokens
from trainer.config.algorithm import AlgorithmConfig
from trainer.types import TrainBatch


def isolation_passes(
    batch: TrainBatch,
    config: AlgorithmConfig,
    generator: torch.Generator | None = None,
    gather: Gather = lambda items: items,
) -> list[Tensor]:
    """The token mask [B, T] of every pass over the rollout batch, in order.

    Without Lopti there is one pass with all tokens of `select_tokens`. With it the low-probability ones of them
    are updated first and the rest with the updated policy [arXiv:2505.12929, algorithm 1]. ``old_logprobs`` stay
    those of before the first pass. Loss denominators do not depend on the masks.

    Args:
        batch: completions with ``old_logprobs``.
        config: ``lopti_eta`` is the threshold; ``lopti_split: random`` moves as many tokens into the first pass
            as there are low ones, chosen at random.
        generator: source of the random split.
        gather: the items of all ranks.
    """
    tokens = select_tokens(batch, config, gather)
    if not config.isolates:
        return [tokens]
    low = low_probability_tokens(batch.old_logprobs, tokens, config.lopti_eta)
    if config.lopti_split == "random":
        low = _random_subset(tokens, int(low.sum()), generator)
    high = tokens - low
    return [low, high] if config.lopti_order == "low_first" else [high, low]


def first_pass_reuses_forwards(batch: TrainBatch, config: AlgorithmConfig) -> bool:
    """Whether forwards kept from the scoring make the first pass cheaper.

    A backward pass costs two forwards. With kept ones of all N positions it costs 2 N; without them 3 n for the
    n positions up to the last token of the pass in each row, which the engine's log-probabilities tell before
    the policy's are known.

    Args:
        batch: completions with ``rollout_logprobs``.
        config: its first pass.
    """
    if not config.isolates:
        return True
    assert batch.rollout_logprobs is not None
    likely = replace(batch, old_logprobs=batch.rollout_logprobs)
    first = isolation_passes(likely, config, torch.Generator().manual_seed(0))[0]
    rows = torch.arange(len(first), device=first.device)
    all_positions = tokens_to_compute(batch, batch.completion_mask, rows)
    asked = asked_tokens(first, batch.completion_mask, config)
    return 3 * tokens_to_compute(batch, asked, rows) > 2 * all_positions


def _random_subset(mask: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
    candidates = mask.flatten().nonzero().squeeze(1)
    order = torch.randperm(len(candidates), generator=generator)
    subset = torch.zeros_like(mask.flatten())
    subset[candidates[order.to(candidates.device)[:size]]] = 1
    return subset.view_as(mask)
