"""Drawing the next token of every row."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.rollouts.engine import SamplingParams


def row_uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """One uniform number in [0, 1) for every row and position, depending on the row's seed alone: [R, length].

    numpy's generator mixes all bits of a seed; a CPU ``torch.Generator`` uses the lowest 32 only, so that
    seeds built as ``step << 32 | row`` would repeat in every step.
    """
    rows = [np.random.default_rng(seed % 2**64).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def sample_tokens(logits: Tensor, uniforms: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        logits: [R, V], any floating dtype; the arithmetic is float32, the cumulative sum float64.
        uniforms: [R] float64 in [0, 1).
        params: temperature and truncation.

    Returns:
        Token ids [R] and their log-probabilities [R] (float32) as defined by ``Sample.logprobs``. Rows whose
        logits are not finite get a log-probability that is not finite either.
    """
    logits = logits.float()
    if params.temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = logits.argmax(dim=-1)
    else:
        logprobs = torch.log_softmax(logits / params.temperature, dim=-1)
        if params.top_k > 0 or params.top_p < 1 or params.min_p > 0:
            logprobs = torch.log_softmax(logprobs.masked_fill(~kept_tokens(logprobs, params), -math.inf), dim=-1)
        cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
        threshold = uniforms[:, None] * cumulative[:, -1:]
        # The first token whose cumulative probability exceeds the threshold has a probability above 0. The clamp
        # only matters for NaN rows: their NaN log-probability tells the caller, an index error would not.
        tokens = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def kept_tokens(logprobs: Tensor, params: SamplingParams) -> Tensor:
    """Which tokens truncation keeps: [R, V] bool, at least one per row.

    In this order, as vLLM does: min_p (share of the largest probability), top_k (ties with the last one kept),
    top_p (the smallest set of the most likely remaining tokens whose renormalised probability reaches top_p).
    """
    keep = torch.ones_like(logprobs, dtype=torch.bool)
    if params.min_p > 0:
        keep &= logprobs >= logprobs.amax(dim=-1, keepdim=True) + math.log(params.min_p)
    if 0 < params.top_k < logprobs.shape[-1]:
        kept = logprobs.masked_fill(~keep, -math.inf)
        keep &= kept >= kept.topk(params.top_k, dim=-1).values[:, -1:]
    if params.top_p < 1:
        kept = logprobs.masked_fill(~keep, -math.inf)
        probabilities, order = torch.softmax(kept, dim=-1).sort(dim=-1, descending=True, stable=True)
        before = probabilities.cumsum(dim=-1) - probabilities
        keep &= torch.zeros_like(keep).scatter_(-1, order, before < params.top_p)
    return keep
