"""Group-relative advantages."""

from typing import Literal

from trainer.rules.groups import centered, group_means, group_std
from trainer.rules.interface import Advantage, AdvantageInputs
from trainer.types import Tensor


class Grpo(Advantage):
    """``(r - group mean) / (group std + 1e-6)`` [arXiv:2402.03300, section 4.1.2].

    The standard deviation is unbiased. Same as verl and the published code of arXiv:2505.12929; TRL
    adds 1e-4 instead of 1e-6.
    """

    name: Literal["grpo"] = "grpo"

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        return centered(inputs.rewards, inputs.group_ids) / (
            group_std(inputs.rewards, inputs.group_ids) + 1e-6
        )


class DrGrpo(Advantage):
    """``r - group mean``, without normalization by the standard deviation [arXiv:2503.20783,
    section 3.2]. Same as verl.
    """

    name: Literal["dr_grpo"] = "dr_grpo"

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        return centered(inputs.rewards, inputs.group_ids)


class Rloo(Advantage):
    """``r - mean of the group's other rewards = G / (G - 1) (r - mean)`` [arXiv:2402.14740, section
    2]. Same as verl.
    """

    name: Literal["rloo"] = "rloo"

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        _, sizes = group_means(inputs.rewards, inputs.group_ids)
        return centered(inputs.rewards, inputs.group_ids) * (sizes / (sizes - 1).clamp(min=1))
