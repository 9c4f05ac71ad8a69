"""Drawing the next token of every row."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from trainer.rollouts.engine import SamplingParams


def row_uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """Return one uniform number in [0, 1) for every row and position, depending on the row's seed
    alone: [R, length].

    numpy's generator mixes all bits of a seed; a CPU ``torch.Generator`` uses the lowest 32 only,
    so that seeds built as ``step << 32 | row`` would repeat in every step.
    """
    rows = [np.random.default_rng(seed % 2**64).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def sample_tokens(
    logits: Tensor, uniforms: Tensor, params: SamplingParams
) -> tuple[Tensor, Tensor]:
    """Draw one token per row by inverting the cumulative distribution.

    Args:
        logits: [R, V], any floating dtype; the arithmetic is float32, the cumulative sum float64.
        uniforms: [R] float64 in [0, 1).
        params: temperature and truncation.

    Returns:
        Token ids [R] and their log-probabilities [R] (float32) as defined by `Completion`.
        Rows whose
        logits are not finite get a log-probability that is not finite either.
    """
    logits = logits.float()
    if params.temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = logits.argmax(dim=-1)
    else:
        logprobs = torch.log_softmax(logits / params.temperature, dim=-1)
        if processors := truncations(params):
            logprobs = torch.log_softmax(processors(None, logprobs), dim=-1)
        cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
        threshold = uniforms[:, None] * cumulative[:, -1:]
        # The first token whose cumulative probability exceeds the threshold has a probability above
        # 0. The clamp only matters for NaN rows: their NaN log-probability tells the caller, an
        # index error would not.
        tokens = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(
            max=logits.shape[-1] - 1
        )
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def truncations(params: SamplingParams) -> LogitsProcessorList:
    """Return what drops tokens, in vLLM's order: min_p, top_k, top_p.

    min_p is a fraction of the largest probability. Ties with the last token of top_k are kept.
    top_p keeps the smallest set of the most likely remaining tokens whose renormalized probability
    reaches it.
    """
    processors = LogitsProcessorList()
    if params.min_p > 0:
        processors.append(MinPLogitsWarper(params.min_p))
    if params.top_k > 0:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    return processors
