"""REINFORCE++-baseline [arXiv:2501.03262, section 3.2]: subtract the group mean, then whiten over
the batch. Same as verl.

trainer run base algorithm.advantage=reinforce_baseline
"""

from typing import ClassVar, Literal

from trainer.rules import (
    Advantage,
    AdvantageInputs,
    KlPlacement,
    centered,
    whiten,
    without_rounding,
)
from trainer.types import Tensor


class ReinforceBaseline(Advantage):
    """``r - group mean``, whitened over all completion tokens.

    If the KL penalty is placed in the reward, its sum over the completion is part of r.
    """

    kl_placements: ClassVar[tuple[KlPlacement, ...]] = ("loss", "reward")

    name: Literal["reinforce_baseline"] = "reinforce_baseline"

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        mask = inputs.completion_mask
        rewards = inputs.rewards
        if inputs.ref_logprobs is not None and inputs.kl_coef > 0:
            log_ratios = without_rounding(inputs.old_logprobs - inputs.ref_logprobs)
            penalty = (log_ratios * mask).sum(dim=1)
            rewards = rewards - inputs.kl_coef * penalty.to(rewards.device)
        per_token = centered(rewards, inputs.group_ids).to(mask, non_blocking=True)[:, None] * mask
        return whiten(per_token, mask, inputs.sum_over_ranks)
