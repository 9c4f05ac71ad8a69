"""CISPO policy loss."""

from typing import Literal

from loptune.section import NonNegative, Probability
from trainer.rules.interface import LossInputs, PolicyLoss, TokenLosses


class Cispo(PolicyLoss):
    """CISPO [arXiv:2506.13585, equations 4 and 5]: every token keeps its gradient, weighted by the
    clipped ratio.

    ``l = -sg(clip(r, 1 - low, 1 + high)) A logprob``. Only the gradient is meaningful, not the loss
    value. Same as TRL and verl.
    """

    name: Literal["cispo"] = "cispo"
    clip_ratio_low: Probability = 1.0
    """lower clip: the ratio is clipped at 1 - clip_ratio_low"""
    clip_ratio_high: NonNegative = 4.0
    """upper clip: the ratio is clipped at 1 + clip_ratio_high"""

    def __call__(self, tokens: LossInputs) -> TokenLosses:
        ratio = tokens.log_ratio.detach().exp()
        weight = ratio.clamp(1 - self.clip_ratio_low, 1 + self.clip_ratio_high)
        return TokenLosses(-weight * tokens.advantages * tokens.logprobs, weight != ratio)
