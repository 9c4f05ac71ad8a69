"""One scale for all groups [arXiv:2508.08221, section 4.2]. As TRL's ``scale_rewards="batch"``.

trainer run base algorithm.advantage=batch_std:batch_std
"""

from torch import Tensor

from trainer.rules import AdvantageInputs, centered, mean_and_variance


def batch_std(inputs: AdvantageInputs) -> Tensor:
    """``(r - mean of group) / (std of the batch + 1e-4)``, unbiased, over the rewards of
    all ranks.
    """
    rewards = inputs.rewards.double()
    _, variance = mean_and_variance(rewards, rewards.new_ones(rewards.shape), inputs.sum_over_ranks)
    return centered(rewards, inputs.group_ids) / (variance.sqrt() + 1e-4)
