"""Token selection over the completions of all ranks.

Rules import this module inside `choose`, because loading a configuration must not import torch.
"""

import numpy as np
import torch
from torch import Tensor

from trainer.rules.interface import Gather


def largest(values: Tensor, candidates: Tensor, count: int, gather: Gather) -> Tensor:
    """Return the mask of the ``count`` candidates with the largest values over all ranks, including
    ties; [B, T] bool.
    """
    everywhere = torch.tensor(gather(values[candidates].tolist()), dtype=torch.float64)
    if count == 0 or not len(everywhere):
        return torch.zeros_like(candidates)
    threshold = everywhere.topk(min(count, len(everywhere))).values[-1]
    return candidates & (values >= threshold)


def quantile(values: Tensor, fraction: float, gather: Gather) -> float:
    """Return the linearly interpolated ``fraction`` quantile of the values [N] over all ranks; inf
    if there are none.
    """
    everywhere = gather(values.double().tolist())
    return float(np.quantile(everywhere, fraction)) if everywhere else np.inf
