"""MaxRL [arXiv:2602.02710]: rare successes have the largest weight. Same as prime-rl.

trainer run base algorithm.advantage=maxrl
"""

from typing import Literal

from loptune.errors import ConfigError
from trainer.rules import Advantage, AdvantageInputs, centered, group_means
from trainer.types import Tensor


class MaxRL(Advantage):
    """``(r - group mean) / group mean``, and 0 if the mean is 0 or the group has size 1. Rewards
    must be non-negative.
    """

    name: Literal["maxrl"] = "maxrl"

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        if bool((inputs.rewards < 0).any()):
            raise ConfigError(
                "maxrl divides by the mean reward of a group and needs non-negative rewards, "
                "but one is "
                f"{float(inputs.rewards.min()):g}: a negative group mean would flip the sign of "
                "every advantage",
                "algorithm.advantage",
                "use non-negative rewards, or choose another advantage",
                key="algorithm.advantage",
                code="negative-reward",
            )
        means, sizes = group_means(inputs.rewards, inputs.group_ids)
        deviations = centered(inputs.rewards, inputs.group_ids).where(sizes > 1, 0.0)
        return (deviations / means.clamp(min=1e-12)).where(means > 0, 0.0)
