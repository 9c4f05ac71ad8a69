"""Quantile advantage estimation [arXiv:2509.22611]: a quantile of the group instead of its mean.

trainer run base algorithm.advantage=quantile_baseline:QuantileBaseline
"""

import math

from pydantic import Field
from torch import Tensor

from trainer.rules import Advantage, AdvantageInputs, Probability, group_std


class QuantileBaseline(Advantage):
    """``(R - Q) / (group std + 1e-6)``, where Q is the smallest reward such that at least a
    fraction ``quantile`` of the group has this reward or a lower one. With rewards 0 and 1, hard
    prompts train only on their successes (Q = 0). Easy prompts, solved by more than 1 -
    ``quantile``, train only on their failures (Q = 1).
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
