"""Entropy-shaped advantages [arXiv:2506.14758]: reward exploratory tokens.

trainer run base algorithm.advantage=entropy_shaped:EntropyShaped
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from trainer.rules import AdvantageInputs, NonNegative, Positive
from trainer.rules.advantages.group_mean import Grpo


class EntropyShaped(Grpo):
    """GRPO's A plus ``min(alpha H, abs(A) / kappa)`` at every token, with H its entropy before the
    update. If kappa is above 1, the sign of A does not change.
    """

    needs_distributions: ClassVar[bool] = True

    alpha: NonNegative = Field(0.4, description="weight of the entropy")
    kappa: Positive = Field(2.0, description="the addition is at most abs(A) / kappa")

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        assert inputs.entropies is not None
        advantages = super().__call__(inputs).to(inputs.entropies)[:, None]
        bonus = (self.alpha * inputs.entropies).minimum(advantages.abs() / self.kappa)
        return advantages + bonus
