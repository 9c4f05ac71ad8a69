"""Choices of single tokens over the completions of all ranks.

Rules import this module where they choose: it needs torch, which reading a configuration does not wait for.
"""

import torch
from torch import Tensor

from trainer.rules.inputs import Gather


def covariances(advantages: Tensor, logprobs: Tensor, tokens: Tensor, gather: Gather) -> Tensor:
    """Return ``(A - mean A) (logprob - mean logprob)`` [arXiv:2505.22617], [B, T] float64.

    The change of the policy's entropy is the negative of its mean: tokens with a large one make the policy narrow.
    Means are over ``tokens`` [B, T] of all ranks; A is before AR.
    """
    values = torch.stack([advantages, logprobs, torch.ones_like(logprobs)]).double() * tokens
    sums = torch.tensor(gather([values.sum(dim=(1, 2)).tolist()]), dtype=torch.float64).sum(dim=0)
    means = (sums / sums[2].clamp(min=1)).to(values.device)
    return (advantages.double() - means[0]) * (logprobs.double() - means[1]) * tokens


def count_tokens(tokens: Tensor, gather: Gather) -> int:
    """Return the number of tokens [B, T] of all ranks."""
    return round(sum(gather([float(tokens.sum())])))


def drawn(candidates: Tensor, count: int, gather: Gather, generator: torch.Generator | None) -> Tensor:
    """Return ``count`` random candidates of all ranks, [B, T] bool; without a generator the first in row order."""
    lots = torch.arange(candidates.numel(), dtype=torch.float64)
    if generator is not None:
        lots = torch.rand(candidates.numel(), dtype=torch.float64, generator=generator)
    return largest(-lots.view(candidates.shape).to(candidates.device), candidates, count, gather)


def largest(values: Tensor, candidates: Tensor, count: int, gather: Gather) -> Tensor:
    """Return the ``count`` candidates of all ranks with the largest values, equal ones all; [B, T] bool."""
    everywhere = torch.tensor(gather(values[candidates].tolist()), dtype=torch.float64)
    if count == 0 or not len(everywhere):
        return torch.zeros_like(candidates)
    threshold = everywhere.topk(min(count, len(everywhere))).values[-1]
    return candidates & (values >= threshold)


def quantile(values: Tensor, fraction: float, gather: Gather) -> float:
    """Return a quantile of the values [N] of all ranks, linearly interpolated; infinite without a value."""
    everywhere = torch.tensor(gather(values.double().tolist()), dtype=torch.float64).sort().values
    if not len(everywhere):
        return float("inf")
    place = fraction * (len(everywhere) - 1)
    low, high = everywhere[int(place)], everywhere[min(int(place) + 1, len(everywhere) - 1)]
    return float(low + (place - int(place)) * (high - low))
