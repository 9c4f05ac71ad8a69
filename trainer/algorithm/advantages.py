"""Advantage estimators: how rewards become one number per completion token.

Each is a function of the batch in the dictionary at the end. A group is the completions of one prompt; one that
stands alone keeps its raw reward, as in verl. Statistics of rewards are computed in float64: in float32 the mean
of eight rewards of 0.7 is not 0.7, and a division by their spread makes an advantage of the rounding.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from trainer.config.algorithm import AlgorithmConfig
from trainer.errors import RewardError
from trainer.types import TrainBatch

SumOverRanks = Callable[[Tensor], Tensor]
AdvantageEstimator = Callable[[TrainBatch, AlgorithmConfig, SumOverRanks], Tensor]


def _group_means(rewards: Tensor, group_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of each completion's group, and how many completions the group has: [B] float64 each."""
    _, group = group_ids.unique(return_inverse=True)
    sums = torch.zeros(int(group.max()) + 1, dtype=torch.float64, device=rewards.device)
    sizes = sums.index_add(0, group, torch.ones_like(rewards, dtype=torch.float64))
    sums = sums.index_add(0, group, rewards.double())
    return (sums / sizes)[group], sizes[group]


def _centred(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """``r - mean of group``, [B] float64; exactly 0 in a group of equal rewards, r in a group of one."""
    means, sizes = _group_means(rewards, group_ids)
    return torch.where(sizes > 1, rewards.double() - means, rewards.double())


def _group_std(rewards: Tensor, group_ids: Tensor) -> Tensor:
    """Unbiased standard deviation of each completion's group, [B] float64; 1 in a group of one."""
    means, sizes = _group_means(rewards, group_ids)
    squares, _ = _group_means((rewards.double() - means).square(), group_ids)
    return torch.where(sizes > 1, (squares * sizes / (sizes - 1).clamp(min=1)).sqrt(), torch.ones_like(means))


def grpo_advantages(rewards: Tensor, group_ids: Tensor, completion_mask: Tensor) -> Tensor:
    """Group-relative advantages [arXiv:2402.03300, section 4.1.2], [B, T], 0 outside the mask.

    ``(r - mean of group) / (std of group + 1e-6)`` with the unbiased standard deviation, the same at every token
    of a completion. As verl and the published code of arXiv:2505.12929; TRL adds 1e-4.
    """
    advantages = _centred(rewards, group_ids) / (_group_std(rewards, group_ids) + 1e-6)
    return _per_token(advantages, completion_mask)


def token_rewards(
    rewards: Tensor, completion_mask: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor | None, kl_coef: float
) -> Tensor:
    """The KL penalty at every token and the reward at the last one, [B, T].

    ``-kl_coef * (old_logprob - ref_logprob)``, plus ``r`` at the last completion token; a completion without
    tokens has no place for its reward.
    """
    per_token = torch.zeros_like(completion_mask)
    if ref_logprobs is not None and kl_coef > 0:
        per_token = -kl_coef * (old_logprobs - ref_logprobs)
    is_last = completion_mask.bool() & (completion_mask.cumsum(dim=1) == completion_mask.sum(dim=1, keepdim=True))
    return per_token + is_last * rewards.to(completion_mask, non_blocking=True)[:, None]


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


def _grpo(batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks) -> Tensor:
    return grpo_advantages(batch.rewards, batch.group_ids, batch.completion_mask)


def _dr_grpo(batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks) -> Tensor:
    """``r - mean of group``: no division by the spread [arXiv:2503.20783, section 3.2]. As verl."""
    return _per_token(_centred(batch.rewards, batch.group_ids), batch.completion_mask)


def _rloo(batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks) -> Tensor:
    """``r - mean of the others of the group = G / (G - 1) (r - mean)`` [arXiv:2402.14740, section 2]. As verl."""
    _, sizes = _group_means(batch.rewards, batch.group_ids)
    scale = torch.where(sizes > 1, sizes / (sizes - 1).clamp(min=1), 1.0)
    return _per_token(_centred(batch.rewards, batch.group_ids) * scale, batch.completion_mask)


def _batch_std(batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks) -> Tensor:
    """``(r - mean of group) / (std of the batch + 1e-4)`` [arXiv:2508.08221, section 4.2].

    The unbiased standard deviation is over the rewards of all ranks. As TRL's ``scale_rewards="batch"``.
    """
    _, std = _batch_statistics(batch.rewards.double(), sum_over_ranks)
    return _per_token(_centred(batch.rewards, batch.group_ids) / (std + 1e-4), batch.completion_mask)


def _maxrl(batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks) -> Tensor:
    """``(r - mean of group) / mean of group``, 0 where the mean is 0 [arXiv:2602.02710]. As prime-rl.

    Raises:
        RewardError: a negative reward: a negative mean would turn every sign around.
    """
    if bool((batch.rewards < 0).any()):
        raise RewardError(
            f"maxrl divides by a group's mean reward, and there is a reward of {float(batch.rewards.min()):g}",
            "algorithm.advantage",
            "use rewards of at least 0, or algorithm.advantage=grpo",
        )
    means, _ = _group_means(batch.rewards, batch.group_ids)
    advantages = torch.where(means > 0, (batch.rewards - means) / means.clamp(min=1e-12), 0.0)
    return _per_token(advantages, batch.completion_mask)


def _reinforce_plus_plus(batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks) -> Tensor:
    kl_coef = 0.0 if config.kl_in_loss else config.kl_coef
    per_token = token_rewards(batch.rewards, batch.completion_mask, batch.old_logprobs, batch.ref_logprobs, kl_coef)
    return reinforce_plus_plus_advantages(per_token, batch.completion_mask, config.gamma, sum_over_ranks)


def _reinforce_plus_plus_baseline(batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks) -> Tensor:
    """``r - mean of group``, whitened over all completion tokens [arXiv:2501.03262, section 3.2]. As verl.

    Where the KL penalty is placed in the reward, its sum over the completion is part of r.
    """
    mask, rewards = batch.completion_mask, batch.rewards
    if batch.ref_logprobs is not None and not config.kl_in_loss:
        penalty = ((batch.old_logprobs - batch.ref_logprobs) * mask).sum(dim=1)
        rewards = rewards - config.kl_coef * penalty.to(rewards.device)
    return whiten(_per_token(_centred(rewards, batch.group_ids), mask), mask, sum_over_ranks)


def _gdpo(batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks) -> Tensor:
    """Every reward normalised in its group, weighted, added, and normalised again [arXiv:2601.05242].

    ``a = sum_k w_k (r_k - mean of group) / (std of group + 1e-4)``; ``A = (a - mean) / (std + 1e-4)`` over the
    completions of all ranks, unbiased standard deviations. As the paper and TRL; verl whitens over tokens.

    Raises:
        RewardError: the rewards have fewer than two parts.
    """
    if batch.reward_parts is None or batch.reward_parts.shape[1] < 2:
        raise RewardError(
            "gdpo normalises several rewards, and these have no parts",
            "algorithm.advantage",
            "name two or more reward.functions, or use algorithm.advantage=grpo",
        )
    values, weights = batch.reward_parts.double().unbind(dim=2)
    added = torch.zeros_like(batch.rewards, dtype=torch.float64)
    for value, weight in zip(values.unbind(dim=1), weights.unbind(dim=1), strict=True):
        means, _ = _group_means(value, batch.group_ids)
        added += weight * (value - means) / (_group_std(value, batch.group_ids) + 1e-4)
    mean, std = _batch_statistics(added, sum_over_ranks)
    return _per_token((added - mean) / (std + 1e-4), batch.completion_mask)


ADVANTAGE_ESTIMATORS: dict[str, AdvantageEstimator] = {
    "grpo": _grpo,
    "dr_grpo": _dr_grpo,
    "rloo": _rloo,
    "batch_std": _batch_std,
    "maxrl": _maxrl,
    "gdpo": _gdpo,
    "reinforce_plus_plus": _reinforce_plus_plus,
    "reinforce_plus_plus_baseline": _reinforce_plus_plus_baseline,
}


def estimate_advantages(
    batch: TrainBatch, config: AlgorithmConfig, sum_over_ranks: SumOverRanks = lambda tensor: tensor
) -> TrainBatch:
    """The batch with the advantages of the configured estimator; a group's completions are all on one rank."""
    return replace(batch, advantages=ADVANTAGE_ESTIMATORS[config.advantage](batch, config, sum_over_ranks))


def _batch_statistics(values: Tensor, sum_over_ranks: SumOverRanks) -> tuple[Tensor, Tensor]:
    """Mean and unbiased standard deviation of values [B] float64 over the completions of all ranks."""
    total, count = sum_over_ranks(torch.stack([values.sum(), torch.ones_like(values).sum()]))
    squares = sum_over_ranks((values - total / count).square().sum())
    return total / count, (squares / (count - 1).clamp(min=1)).sqrt()


def _per_token(advantages: Tensor, completion_mask: Tensor) -> Tensor:
    return advantages.to(completion_mask, non_blocking=True)[:, None] * completion_mask
