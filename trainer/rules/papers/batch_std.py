"""Use the standard deviation of the batch for all groups [arXiv:2508.08221, section 4.2]. Same as
TRL's ``scale_rewards="batch"``.
"""

from typing import Literal

from trainer.rules import Advantage, AdvantageInputs, centered, mean_and_variance
from trainer.types import Tensor


class BatchStd(Advantage):
    """``(r - group mean) / (batch std + 1e-4)``, with the unbiased standard deviation of the
    rewards of all ranks.
    """

    name: Literal["batch_std"] = "batch_std"

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        rewards = inputs.rewards.double()
        weights = rewards.new_ones(rewards.shape)
        _, variance = mean_and_variance(rewards, weights, inputs.sum_over_ranks)
        return centered(rewards, inputs.group_ids) / (variance.sqrt() + 1e-4)
