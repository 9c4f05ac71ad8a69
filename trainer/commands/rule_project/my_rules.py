"""A policy loss of your own: change the equation, keep the interface."""

from pydantic import Field
from torch import Tensor

from trainer.rules import LossInputs, NonNegative, PolicyLoss


class Cautious(PolicyLoss):
    """``-A r`` while the ratio r is within ``1 ± strength``, and no gradient outside."""

    strength: NonNegative = Field(0.5, description="largest change of the ratio")

    def __call__(self, tokens: LossInputs) -> Tensor:
        ratio = tokens.log_ratio.exp()
        return -tokens.advantages * ratio.clamp(1 - self.strength, 1 + self.strength)
