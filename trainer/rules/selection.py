"""Choices of single tokens over the completions of all ranks.

Rules import this module where they choose: it needs torch, which reading a configuration does not
wait for.
"""

import numpy as np
import torch
from torch import Tensor

from trainer.rules.inputs import Gather


def largest(values: Tensor, candidates: Tensor, count: int, gather: Gather) -> Tensor:
    """Return the ``count`` candidates of all ranks with the largest values, equal ones all; [B, T]
    bool.
    """
    everywhere = torch.tensor(gather(values[candidates].tolist()), dtype=torch.float64)
    if count == 0 or not len(everywhere):
        return torch.zeros_like(candidates)
    threshold = everywhere.topk(min(count, len(everywhere))).values[-1]
    return candidates & (values >= threshold)


def quantile(values: Tensor, fraction: float, gather: Gather) -> float:
    """Return a quantile of the values [N] of all ranks, linearly interpolated; infinite without a
    value.
    """
    everywhere = gather(values.double().tolist())
    return float(np.quantile(everywhere, fraction)) if everywhere else np.inf
