"""GDPO [arXiv:2601.05242]: normalize each reward separately, so that a reward with a small spread
is not dominated by the others.

trainer run base algorithm.advantage=gdpo reward.functions='{math: 1.0, format: 1.0}'
"""

from typing import Literal

from loptune.errors import ConfigError
from trainer.rules import (
    FLOAT32_RESOLUTION,
    Advantage,
    AdvantageInputs,
    centered,
    group_std,
    mean_and_variance,
)
from trainer.types import Tensor


class Gdpo(Advantage):
    """Normalize every reward within its group, add the weighted results, and normalize over all
    completions.

    ``a = sum_k w_k (r_k - group mean) / (group std + 1e-4)``; ``A = (a - mean) / (std +
    1e-4)`` over the completions of all ranks. Both standard deviations are unbiased. Same as the
    paper and TRL; verl whitens over tokens.
    """

    name: Literal["gdpo"] = "gdpo"

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        parts = [part for part, weight in sorted(inputs.part_weights.items()) if weight]
        if len(parts) < 2:
            raise ConfigError(
                "gdpo normalizes each reward component separately and needs at least two",
                "reward.functions",
                "use two or more functions, such as reward.functions='{math: 1.0, format: 1.0}'",
                key="reward.functions",
                code="one-reward",
            )
        total = inputs.rewards.new_zeros(inputs.rewards.shape).double()
        for part in parts:
            values = part_values(inputs, part)
            spread = group_std(values, inputs.group_ids) + 1e-4
            total = total + inputs.part_weights[part] * centered(values, inputs.group_ids) / spread
        mean, variance = mean_and_variance(
            total, total.new_ones(total.shape), inputs.sum_over_ranks
        )
        advantages = (total - mean) / (variance.sqrt() + 1e-4)
        # if parts cancel out, only a rounding error remains, which is small compared with the
        # weights
        scale = sum(abs(inputs.part_weights[part]) for part in parts)
        return advantages.masked_fill(variance.sqrt() <= FLOAT32_RESOLUTION * scale, 0.0)


def part_values(inputs: AdvantageInputs, part: str) -> Tensor:
    """Return a part of every reward before its weight, [B] float64.

    Missing parts of a completion, for example if scoring failed, share the rest of its reward
    equally.
    """
    import torch

    values = []
    for reward, present in zip(inputs.rewards.tolist(), inputs.reward_parts, strict=True):
        missing = max(1, len(inputs.part_weights) - len(present))
        values.append(
            present.get(part, (reward - sum(present.values())) / missing)
            / inputs.part_weights[part]
        )
    return torch.tensor(values, dtype=torch.float64)
