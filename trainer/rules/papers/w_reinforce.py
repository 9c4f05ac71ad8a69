"""NSR and W-REINFORCE [arXiv:2506.01347]: learn mainly from incorrect completions; correct ones get
a small weight or none. Same as the authors' code, except for the mean over tokens (see below).

trainer run base algorithm.advantage=w_reinforce
"""

from typing import ClassVar, Literal

from pydantic import Field

from trainer.rules import Advantage, AdvantageInputs, NonNegative
from trainer.types import Tensor


class WReinforce(Advantage):
    """``A = positive_weight`` of a right completion and -1 of a wrong one: no baseline, no spread.

    With a weight of 0 it is NSR (negative samples only), with 1 REINFORCE on rewards of 1 and -1.
    The authors' code drops the right completions of NSR before it takes a mean over tokens; here
    their tokens count.
    """

    needs_groups: ClassVar[bool] = False

    name: Literal["w_reinforce"] = "w_reinforce"
    positive_weight: NonNegative = Field(
        0.1, description="advantage of right completions; 0 is NSR"
    )
    correct_above: float = Field(0.5, description="reward above which a completion is right")

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        right = inputs.rewards > self.correct_above
        return right * self.positive_weight - (~right).double()
