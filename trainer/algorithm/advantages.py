"""Advantage estimators: how rewards become one number per completion token."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from trainer.config.schema import AlgorithmConfig
from trainer.types import TrainBatch

SumOverRanks = Callable[[Tensor], Tensor]


def grpo_advantages(rewards: Tensor, group_ids: Tensor, completion_mask: Tensor) -> Tensor:
    """Group-relative advantages [arXiv:2402.03300, section 4.1.2].

    ``(r - mean of group) / (std of group + 1e-6)`` with the unbiased standard deviation, the same at every token
    of a completion. A group of one has mean 0 and standard deviation 1, so its advantage is its reward.

    Args:
        rewards: [B].
        group_ids: [B], completions with one id share a prompt.
        completion_mask: [B, T].

    Returns:
        [B, T], 0 outside the mask.
    """
    advantages = torch.empty_like(rewards)
    for group_id in group_ids.unique():
        members = group_ids == group_id
        group = rewards[members]
        if len(group) == 1:
            advantages[members] = group / (1 + 1e-6)
        else:
            advantages[members] = (group - group.mean()) / (group.std() + 1e-6)
    return advantages[:, None] * completion_mask


def token_rewards(
    rewards: Tensor,
    completion_mask: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor | None,
    kl_coef: float,
) -> Tensor:
    """The KL penalty at every token and the reward at the last one, [B, T].

    ``-kl_coef * (old_logprob - ref_logprob)``, plus ``r`` at the last completion token.
    """
    per_token = torch.zeros_like(completion_mask)
    if ref_logprobs is not None and kl_coef > 0:
        per_token = -kl_coef * (old_logprobs - ref_logprobs) * completion_mask
    last = completion_mask.sum(dim=1).long() - 1
    rows = torch.arange(len(rewards), device=rewards.device)
    per_token[rows, last] += rewards
    return per_token


def discounted_returns(per_token_rewards: Tensor, completion_mask: Tensor, gamma: float) -> Tensor:
    """``G_t = r_t + gamma * G_{t+1}`` over the completion tokens, [B, T]."""
    returns = torch.zeros_like(per_token_rewards)
    running = torch.zeros_like(per_token_rewards[:, 0])
    for t in reversed(range(per_token_rewards.shape[1])):
        running = (per_token_rewards[:, t] + gamma * running) * completion_mask[:, t]
        returns[:, t] = running
    return returns


def whiten(values: Tensor, mask: Tensor, sum_over_ranks: SumOverRanks) -> Tensor:
    """``(x - mean) / sqrt(var + 1e-8)`` over all masked tokens of all ranks, unbiased variance; [B, T]."""
    totals = sum_over_ranks(torch.stack([(values * mask).sum(), mask.sum()]).double())
    mean, count = totals[0] / totals[1], totals[1]
    squares = sum_over_ranks((((values.double() - mean) ** 2) * mask).sum())
    variance = squares / (count - 1).clamp(min=1)
    return ((values - mean) * torch.rsqrt(variance + 1e-8)).to(values.dtype) * mask


def reinforce_plus_plus_advantages(
    per_token_rewards: Tensor, completion_mask: Tensor, gamma: float, sum_over_ranks: SumOverRanks
) -> Tensor:
    """Whitened discounted returns [arXiv:2501.03262], [B, T]; the whitening spans the batches of all ranks."""
    returns = discounted_returns(per_token_rewards, completion_mask, gamma)
    return whiten(returns, completion_mask, sum_over_ranks)


def _estimate_grpo(batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks) -> Tensor:
    return grpo_advantages(batch.rewards, batch.group_ids, batch.completion_mask)


def _estimate_reinforce_plus_plus(
    batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks
) -> Tensor:
    kl_coef = 0.0 if config.kl_in_loss else config.kl_coef
    per_token = token_rewards(
        batch.rewards, batch.completion_mask, batch.old_logprobs, batch.ref_logprobs, kl_coef
    )
    return reinforce_plus_plus_advantages(per_token, batch.completion_mask, config.gamma, sum_over_ranks)


ADVANTAGE_ESTIMATORS: dict[str, Callable[[TrainBatch, AlgorithmConfig, SumOverRanks], Tensor]] = {
    "grpo": _estimate_grpo,
    "reinforce_plus_plus": _estimate_reinforce_plus_plus,
}


def estimate_advantages(
    batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks = lambda tensor: tensor
) -> TrainBatch:
    """The batch with the advantages of the configured algorithm.

    Args:
        batch: completions of this rank; a group's completions are all on one rank.
        config: names the estimator.
        sum_over_ranks: adds a tensor over all ranks.
    """
    return replace(batch, advantages=ADVANTAGE_ESTIMATORS[config.name](batch, config, sum_over_ranks))
