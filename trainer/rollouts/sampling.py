"""Token sampling."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from trainer.rollouts.engine import SamplingParams


def row_uniforms(seeds: Sequence[int], length: int) -> Tensor:
    """Return one uniform number in [0, 1) for every row and position, depending on the row's seed
    alone: [R, length].

    numpy's generator uses all bits of a seed. A CPU ``torch.Generator`` only uses the lowest 32, so
    seeds built as ``step << 32 | row`` would repeat in every step.
    """
    rows = [np.random.default_rng(seed % 2**64).random(length) for seed in seeds]
    return torch.from_numpy(np.stack(rows))


def sample_tokens(
    logits: Tensor, uniforms: Tensor, params: SamplingParams
) -> tuple[Tensor, Tensor]:
    """Sample one token per row by inverse transform sampling.

    Args:
        logits: [R, V], any floating dtype; the arithmetic is float32, the cumulative sum float64.
        uniforms: [R] float64 in [0, 1).
        params: temperature, truncation and excluded tokens.

    Returns:
        Token ids [R] and their log-probabilities [R] (float32) as defined by `Completion`.
        Rows with non-finite logits get a non-finite log-probability.
    """
    logits = logits.float()
    if params.excluded_token_ids:
        excluded = torch.tensor(params.excluded_token_ids, device=logits.device)
        logits = logits.index_fill(-1, excluded, -torch.inf)
    if params.temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = logits.argmax(dim=-1)
    else:
        logprobs = torch.log_softmax(logits / params.temperature, dim=-1)
        if processors := truncations(params):
            logprobs = torch.log_softmax(processors(None, logprobs), dim=-1)
        cumulative = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
        threshold = uniforms[:, None] * cumulative[:, -1:]
        # The first token whose cumulative probability exceeds the threshold always has a
        # probability above 0. The clamp only affects NaN rows, which must not raise an index error:
        # the caller detects their NaN log-probability.
        tokens = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(
            max=logits.shape[-1] - 1
        )
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def truncations(params: SamplingParams) -> LogitsProcessorList:
    """Return the truncation processors in vLLM's order: min_p, top_k, top_p.

    min_p is relative to the largest probability. top_k keeps ties with the last token. top_p keeps
    the smallest set of most likely remaining tokens whose renormalized probability reaches it.
    """
    processors = LogitsProcessorList()
    if params.min_p > 0:
        processors.append(MinPLogitsWarper(params.min_p))
    if params.top_k > 0:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    return processors
