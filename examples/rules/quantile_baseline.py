"""Quantile advantage estimation [arXiv:2509.22611]: a group's quantile instead of its mean.

trainer run base algorithm.advantage=quantile_baseline:QuantileBaseline
"""

import math

from pydantic import Field
from torch import Tensor

from trainer.rules import Advantage, AdvantageInputs, Probability, group_std


class QuantileBaseline(Advantage):
    """``(R - Q) / (group std + 1e-6)``, Q the smallest reward that a fraction ``quantile`` of
    the group does not exceed. With rewards 0 and 1, hard prompts train on their successes only
    (Q = 0), and easy prompts, solved by more than 1 - ``quantile``, on their failures only (Q = 1).
    """

    quantile: Probability = Field(0.4, description="K of the K-quantile")

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        rewards = inputs.rewards.double()
        baselines = rewards.clone()
        for group in inputs.group_ids.unique():
            rows = inputs.group_ids == group
            ordered = rewards[rows].sort().values
            baselines[rows] = ordered[max(0, math.ceil(self.quantile * len(ordered)) - 1)]
        return (rewards - baselines) / (group_std(rewards, inputs.group_ids) + 1e-6)
