"""Reweightings in the published code of arXiv:2505.12929 that no figure of the paper uses.

trainer run tiny_kk algorithm.loss=reweightings:Sigmoid algorithm.loss.slope=4
trainer run tiny_kk algorithm.advantage=reweightings:right_only
"""

from dataclasses import replace

import torch

from trainer.rules import AdvantageInputs, LossInputs, Probability, TokenLosses, centered
from trainer.rules.losses.clipped import Clipped


class Sigmoid(Clipped):
    """`Clipped` with the advantage multiplied by ``2 sigmoid(slope (pi_old - center))``.

    This is ``both_sigmoid`` of the published code, or with ``negative_only`` its
    ``negative_sigmoid``. Unlike AR, it increases the advantage of tokens with ``pi_old > center``.
    """

    slope: float = 1.0
    """steepness k; 0 is off"""
    center: Probability = 0.5
    """probability tau at which the weight is 1"""
    negative_only: bool = False
    """reweight negative advantages only"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        weights = 2 * torch.sigmoid(self.slope * (tokens.old_logprobs.exp() - self.center))
        if self.negative_only:
            weights = weights.where(tokens.advantages < 0, 1.0)
        return super().__call__(replace(tokens, advantages=weights * tokens.advantages))


def right_only(inputs: AdvantageInputs) -> torch.Tensor:
    """Return 1 for a reward above the mean of its group, else 0, [B]; ``RAFT_linear`` of the
    published code.
    """
    return (centered(inputs.rewards, inputs.group_ids) > 0).double()
