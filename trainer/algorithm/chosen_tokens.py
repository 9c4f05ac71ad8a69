"""Tokens that a loss singles out: those it holds still, or pulls back.

They are chosen once for a rollout batch, over the tokens of all ranks and from the log-probabilities of before the
update, so that neither micro-batches nor ranks nor AR change the choice. verl and the published code of Lp-Reg
choose anew in every micro-batch, from the current log-probabilities: the same ones at the first optimizer step.
"""

from dataclasses import replace

import torch
from torch import Tensor

from trainer.algorithm.token_filters import Gather, counted_tokens
from trainer.config.algorithm import AlgorithmConfig
from trainer.types import TrainBatch

COVARIANCE_RANGE = (1.0, 5.0)  # of Clip-Cov's candidates [arXiv:2505.22617]


def covariances(advantages: Tensor, logprobs: Tensor, tokens: Tensor, gather: Gather) -> Tensor:
    """``(A - mean A) (logprob - mean logprob)`` [arXiv:2505.22617], [B, T] float64.

    The change of the policy's entropy is the negative of its mean: tokens with a large one make the policy narrow.
    Means are over ``tokens`` [B, T] of all ranks; A is before AR.
    """
    values = torch.stack([advantages, logprobs, torch.ones_like(logprobs)]).double() * tokens
    sums = torch.tensor(gather([values.sum(dim=(1, 2)).tolist()]), dtype=torch.float64).sum(dim=0)
    means = (sums / sums[2].clamp(min=1)).to(values.device)
    return (advantages.double() - means[0]) * (logprobs.double() - means[1]) * tokens


def clip_cov_tokens(
    candidates: Tensor, count: int, gather: Gather = lambda items: items, generator: torch.Generator | None = None
) -> Tensor:
    """Up to ``count`` random candidates [B, T] bool of all ranks; the first in row order without a generator."""
    lots = torch.arange(candidates.numel(), dtype=torch.float64)
    if generator is not None:
        lots = torch.rand(candidates.numel(), dtype=torch.float64, generator=generator)
    drawn = lots.view(candidates.shape).to(candidates.device)
    return _largest(-drawn, candidates, count, gather)


def kl_cov_tokens(covariance: Tensor, tokens: Tensor, count: int, gather: Gather = lambda items: items) -> Tensor:
    """The ``count`` tokens of all ranks with the largest covariance, unless it is 0, [B, T] bool."""
    return _largest(covariance, tokens.bool(), count, gather) & (covariance != 0)


def choose_tokens(
    batch: TrainBatch,
    config: AlgorithmConfig,
    generator: torch.Generator | None = None,
    gather: Gather = lambda items: items,
) -> TrainBatch:
    """The scored batch, advantages before AR, with the tokens that the configured loss singles out, if it does."""
    if config.share_of_chosen == 0:
        return batch
    tokens = counted_tokens(batch, config)
    if config.loss == "lp_reg":  # the least probable bad ones, as far as the proxy has them [arXiv:2510.03222]
        assert batch.proxy_logprobs is not None
        bad = tokens.bool() & (batch.advantages < 0)
        count = int(config.share_of_chosen * _count(bad, gather))
        chosen = _largest(-batch.old_logprobs.double(), bad, count, gather) & batch.proxy_logprobs.isfinite()
        return replace(batch, chosen=chosen)
    covariance = covariances(batch.advantages, batch.old_logprobs, tokens, gather)
    count = max(1, int(config.share_of_chosen * _count(tokens, gather)))
    if config.loss == "kl_cov":
        return replace(batch, chosen=kl_cov_tokens(covariance, tokens, count, gather))
    low, high = COVARIANCE_RANGE
    candidates = (covariance > low) & (covariance < high)
    return replace(batch, chosen=clip_cov_tokens(candidates, count, gather, generator))


def _count(tokens: Tensor, gather: Gather) -> int:
    return round(sum(gather([float(tokens.sum())])))


def _largest(values: Tensor, candidates: Tensor, count: int, gather: Gather) -> Tensor:
    """The ``count`` candidates of all ranks with the largest values, equal ones all; [B, T] bool."""
    everywhere = torch.tensor(gather(values[candidates].tolist()), dtype=torch.float64)
    if count == 0 or not len(everywhere):
        return torch.zeros_like(candidates)
    threshold = everywhere.topk(min(count, len(everywhere))).values[-1]
    return candidates & (values >= threshold)
