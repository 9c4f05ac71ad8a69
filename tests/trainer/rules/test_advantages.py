import statistics
from dataclasses import replace

import pytest
import torch

from tests.trainer.algorithm.batches import make_batch
from trainer.algorithm.advantages import estimate_advantages
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.groups import centered, has_varied_rewards, whiten
from trainer.rules.interface import AdvantageInputs
from trainer.rules.kinds import ADVANTAGE


def test_a_token_alone_is_whitened_to_zero():
    assert whiten(torch.tensor([[3.0]]), torch.ones(1, 1), lambda tensor: tensor).tolist() == [
        [0.0]
    ]


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        # Token rewards -0.05 and 2 + 0.05, 0, 1; returns with gamma 0.5.
        (
            {"advantage": {"name": "reinforce_plus_plus", "gamma": 0.5}},
            [-0.05 + 0.5 * 2.05, 2.05, 0.0, 1.0],
        ),
        (
            {"advantage": {"name": "reinforce_plus_plus", "gamma": 0.5}, "kl_placement": "loss"},
            [1.0, 2.0, 0.0, 1.0],
        ),
        # The penalties of the first sum to 0.2 - 0.05: rewards 2 - 0.15, 0 and 1, minus their mean
        # of 0.95.
        ({"advantage": "reinforce_baseline", "kl_placement": "reward"}, [0.9, 0.9, -0.95, 0.05]),
        ({"advantage": "reinforce_baseline"}, [1.0, 1.0, -1.0, 0.0]),
    ],
)
def test_reinforce_plus_plus_penalizes_in_the_reward_or_the_loss(settings, values):
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    log_ratio = torch.tensor([[0.5, -0.5], [0.0, 0.0], [0.0, 0.0]])
    if settings["advantage"] == "reinforce_baseline":
        log_ratio[0] = torch.tensor([2.0, -0.5])
    old = -torch.ones(3, 2) * mask
    batch = replace(
        make_batch(),
        rewards=torch.tensor([2.0, 0.0, 1.0]),
        group_ids=torch.tensor([0, 0, 0]),
        completion_mask=mask,
        old_logprobs=old,
        ref_logprobs=old - log_ratio,
    )
    advantages = estimate_advantages(batch, AlgorithmConfig(kl_coef=0.1, **settings)).advantages
    whitened = [(value - statistics.mean(values)) / statistics.stdev(values) for value in values]
    assert advantages[mask.bool()].tolist() == pytest.approx(whitened, abs=1e-6)


def advantages_of(name, rewards, group_size, mask=None, log_ratio=None):
    rewards = torch.tensor(rewards)
    mask = torch.ones(len(rewards), 3) if mask is None else mask
    old = mask * -1.0
    return ADVANTAGE.read(name)(
        AdvantageInputs(
            rewards=rewards,
            group_ids=torch.arange(len(rewards)) // group_size,
            completion_mask=mask,
            old_logprobs=old,
            ref_logprobs=None if log_ratio is None else old - log_ratio,
            entropies=None,
            reward_parts=[{"a": 0.5 * r, "b": 0.5 * r} for r in rewards.tolist()],
            part_weights={"a": 0.5, "b": 0.5},
            kl_coef=0.0 if log_ratio is None else 0.01,
            sum_over_ranks=lambda tensor: tensor,
        )
    )


COMPARING = [
    *("grpo", "dr_grpo", "rloo", "reinforce_plus_plus"),
    *("gdpo", "batch_std"),
    *("maxrl", "reinforce_baseline"),
]


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("reward", [0.1, 0.7, 1.0, 1e-3, 123.4])
def test_rewards_that_differ_by_rounding_alone_have_no_advantage(name, reward):
    next_float = float(torch.nextafter(torch.tensor(reward), torch.tensor(torch.inf)))
    mask = (torch.arange(3) < torch.tensor([3, 1, 2, 3, 1, 2, 3, 3])[:, None]).float()
    for rewards in ([reward] * 8, [reward, next_float] * 4):
        assert not advantages_of(name, rewards, 4, mask).any()


@pytest.mark.parametrize("name", COMPARING)
def test_rewards_that_differ_by_more_than_rounding_have_one(name):
    advantages = advantages_of(name, [0.1, 0.1001] * 4, 4)
    assert (advantages.reshape(8, -1)[:, 0] > 0).tolist() == [False, True] * 4


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce_baseline"])
@pytest.mark.parametrize("reward", [0.0, 0.7, -3.0])
def test_a_penalty_in_the_reward_does_not_whiten_rounding(name, reward):
    log_ratio = torch.linspace(-1, 1, 24).view(8, 3)
    assert not advantages_of(name, [reward] * 8, 4, log_ratio=4e-7 * log_ratio).any()
    assert advantages_of(name, [reward] * 8, 4, log_ratio=0.1 * log_ratio).any()


@pytest.mark.parametrize(
    ("rewards", "varied"),
    [
        ([1.0, 1.0], False),
        ([1000.0, 1000.0001], False),  # a difference of float32's rounding
        ([0.0, 5e-7], True),
        ([1.0, 0.0, 0.5], True),
        ([0.7], True),
    ],
)
def test_a_group_is_varied_if_it_has_advantages(rewards, varied):
    assert has_varied_rewards(rewards) is varied
    values = torch.tensor(rewards, dtype=torch.float64)
    assert centered(values, torch.zeros(len(rewards))).any().item() is varied


def test_the_token_baseline_trains_a_completion_whose_reward_is_the_groups_mean():
    batch = replace(
        make_batch(),
        rewards=torch.tensor([0.0, 0.5, 1.0]),
        group_ids=torch.zeros(3, dtype=torch.int64),
        completion_mask=torch.ones(3, 2),
        old_logprobs=-torch.ones(3, 2),
        ref_logprobs=None,
        gradient_norms=torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]),
    )
    config = AlgorithmConfig(advantage="optimal_token_baseline")
    middle = estimate_advantages(batch, config).advantages[1]
    assert (middle < 0).all()  # the best completion has the largest weight in the baseline
