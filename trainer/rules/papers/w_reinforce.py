"""NSR and W-REINFORCE [arXiv:2506.01347]: learn mainly from incorrect completions; correct ones get
a small weight or none. Same as the authors' code, except for the mean over tokens (see below).

trainer run base algorithm.advantage=w_reinforce
"""

from typing import ClassVar, Literal

from pydantic import Field

from trainer.rules import Advantage, AdvantageInputs, NonNegative
from trainer.types import Tensor


class WReinforce(Advantage):
    """``A = positive_weight`` for a correct completion and -1 for an incorrect one, without
    baseline or normalization. A weight of 0 is NSR (negative samples only), and 1 is REINFORCE with
    rewards 1 and -1. For NSR, the authors' code drops correct completions before it takes a mean
    over tokens; here their tokens are included in the mean.
    """

    needs_groups: ClassVar[bool] = False

    name: Literal["w_reinforce"] = "w_reinforce"
    positive_weight: NonNegative = Field(
        0.1, description="advantage of correct completions; 0 is NSR"
    )
    correct_above: float = Field(0.5, description="completions with a higher reward are correct")

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        right = inputs.rewards > self.correct_above
        return right * self.positive_weight - (~right).double()
