"""REINFORCE++ [arXiv:2501.03262]: advantages whitened over the batch."""

from typing import Literal

from loptune.section import Probability
from trainer.rules.groups import whiten
from trainer.rules.interface import Advantage, AdvantageInputs, without_rounding
from trainer.types import Tensor


class ReinforcePlusPlus(Advantage):
    """``A_t = (G_t - mean of G) / sqrt(variance of G + 1e-8)`` over the completion tokens of all
    ranks, with the returns ``G_t = r_t + gamma G_{t+1}`` of the token rewards ``r_t = [t is last] r
    - kl_coef (log pi_old - log pi_ref)`` [arXiv:2501.03262]. Same as verl.
    """

    kl_placements = ("reward", "loss")
    needs_groups = False

    name: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    gamma: Probability = 1.0
    """discount factor per token"""

    def __call__(self, inputs: AdvantageInputs) -> Tensor:
        returns = discounted_returns(token_rewards(inputs), inputs.completion_mask, self.gamma)
        return whiten(returns, inputs.completion_mask, inputs.sum_over_ranks)


def token_rewards(inputs: AdvantageInputs) -> Tensor:
    """Return token rewards [B, T]: the KL penalty at every token plus the reward at the last one.

    ``-kl_coef * (old_logprob - ref_logprob)``, plus ``r`` at the last completion token; an empty
    completion gets no reward.
    """
    mask = inputs.completion_mask
    is_last = mask.bool() & (mask.cumsum(dim=1) == mask.sum(dim=1, keepdim=True))
    rewards = is_last * inputs.rewards.to(mask, non_blocking=True)[:, None]
    if inputs.ref_logprobs is None:
        return rewards
    return rewards - inputs.kl_coef * without_rounding(inputs.old_logprobs - inputs.ref_logprobs)


def discounted_returns(per_token_rewards: Tensor, completion_mask: Tensor, gamma: float) -> Tensor:
    """Return ``G_t = r_t + gamma * G_{t+1}`` over the completion tokens, [B, T]."""
    returns = per_token_rewards * completion_mask
    for t in reversed(range(returns.shape[1] - 1)):
        returns[:, t] += gamma * returns[:, t + 1] * completion_mask[:, t]
    return returns
