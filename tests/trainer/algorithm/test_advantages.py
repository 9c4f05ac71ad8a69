import math

import pytest
import torch

from trainer.algorithm.advantages import (
    discounted_returns,
    grpo_advantages,
    reinforce_plus_plus_advantages,
    token_rewards,
    whiten,
)


def test_grpo_centres_and_scales_each_group_with_the_unbiased_deviation():
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0, 3.0, 3.0])
    group_ids = torch.tensor([0, 0, 0, 0, 1, 1])
    mask = torch.tensor([[1.0, 1.0]] * 5 + [[1.0, 0.0]])
    advantages = grpo_advantages(rewards, group_ids, mask)
    # group 0: mean 0.5, unbiased variance (4 * 0.25) / 3
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert advantages[:4, 0].tolist() == pytest.approx([expected, -expected, expected, -expected])
    assert advantages[4:].tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_grpo_group_of_one_keeps_its_reward():
    advantages = grpo_advantages(torch.tensor([2.0]), torch.tensor([7]), torch.ones(1, 3))
    assert advantages.tolist() == [pytest.approx([2.0] * 3, rel=1e-5)]


def test_token_rewards_put_the_score_on_the_last_completion_token():
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    old = torch.tensor([[-1.0, -2.0, 0.0], [-1.0, -1.0, -1.0]])
    ref = torch.tensor([[-1.5, -2.0, 0.0], [-1.0, -3.0, -1.0]])
    rewards = token_rewards(torch.tensor([3.0, -1.0]), mask, old, ref, kl_coef=0.1)
    assert rewards[0].tolist() == pytest.approx([-0.05, 3.0, 0.0])
    assert rewards[1].tolist() == pytest.approx([0.0, -0.2, -1.0])


def test_discounted_returns_stop_at_the_end_of_the_completion():
    rewards = torch.tensor([[1.0, 2.0, 100.0]])
    returns = discounted_returns(rewards, torch.tensor([[1.0, 1.0, 0.0]]), gamma=0.5)
    assert returns.tolist() == [[2.0, 2.0, 0.0]]


def test_whitening_uses_the_tokens_of_all_ranks():
    ones = torch.ones(1, 2)
    other = torch.tensor([5.0, 7.0])  # what the other rank holds

    def add_other_rank(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 1:  # sum and count
            return tensor + torch.tensor([other.sum(), 2.0], dtype=tensor.dtype)
        return tensor + ((other.double() - 4.0) ** 2).sum()  # squares around the common mean 4

    whitened = whiten(torch.tensor([[1.0, 3.0]]), ones, add_other_rank)
    deviation = math.sqrt((9 + 1 + 1 + 9) / 3)
    assert whitened.tolist() == [pytest.approx([-3 / deviation, -1 / deviation])]


def test_reinforce_plus_plus_has_mean_zero_and_unit_variance_over_completion_tokens():
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    per_token = torch.tensor([[0.0, 0.0, 2.0], [-1.0, 0.0, 0.0]])
    advantages = reinforce_plus_plus_advantages(per_token, mask, 1.0, lambda tensor: tensor)
    # returns 2, 2, 2, -1: mean 1.25, unbiased variance 2.25
    assert advantages[0].tolist() == pytest.approx([0.5, 0.5, 0.5])
    assert advantages[1].tolist() == pytest.approx([-1.5, 0.0, 0.0])
