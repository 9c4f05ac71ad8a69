"""Your own policy loss: change the equation, keep the interface."""

from pydantic import Field
from torch import Tensor

from trainer.rules import LossInputs, NonNegative, PolicyLoss


class Cautious(PolicyLoss):
    """``-A clip(r, 1 - strength, 1 + strength)``: no gradient outside the clip range."""

    strength: NonNegative = Field(
        0.5, description="half-width of the range of ratios with a gradient"
    )

    def __call__(self, tokens: LossInputs) -> Tensor:
        ratio = tokens.log_ratio.exp()
        return -tokens.advantages * ratio.clamp(1 - self.strength, 1 + self.strength)
