"""GDPO [arXiv:2601.05242]: a reward with a small spread is not drowned by another.

trainer run base algorithm.advantage=gdpo:gdpo reward.functions='{math: 1.0, format: 1.0}'
"""

from torch import Tensor

from trainer.rules import AdvantageInputs, group_means, group_std, mean_and_variance


def gdpo(inputs: AdvantageInputs) -> Tensor:
    """Every reward normalized in its group, weighted, added, and normalized again over all completions.

    ``a = sum_k w_k (r_k - mean of group) / (std of group + 1e-4)``; ``A = (a - mean) / (std + 1e-4)`` over the
    completions of all ranks, unbiased standard deviations. As the paper and TRL; verl whitens over tokens.
    """
    if inputs.reward_parts is None or inputs.reward_parts.shape[1] < 2:
        raise ValueError("these rewards have no parts: name two or more reward.functions")
    total = inputs.rewards.double() * 0
    for part in inputs.reward_parts.double().unbind(dim=1):
        values, weights = part.unbind(dim=1)
        means, _ = group_means(values, inputs.group_ids)
        total = total + weights * (values - means) / (group_std(values, inputs.group_ids) + 1e-4)
    mean, variance = mean_and_variance(total, total.new_ones(total.shape), inputs.sum_over_ranks)
    return (total - mean) / (variance.sqrt() + 1e-4)
