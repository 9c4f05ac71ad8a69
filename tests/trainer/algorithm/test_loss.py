import math

import pytest
import torch

from trainer.algorithm.loss import token_weights, update_loss
from trainer.algorithm.loss_inputs import LossInputs, UpdateTotals
from trainer.config.algorithm import AlgorithmConfig
from trainer.config.schema import TrainConfig, apply_overrides
from trainer.errors import ConfigError

MASK = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", [[0.2] * 4, [0.2, 0, 0, 0]]),
        ("seq_mean_token_sum", [[0.5] * 4, [0.5, 0, 0, 0]]),
        ("seq_mean_token_mean", [[0.125] * 4, [0.5, 0, 0, 0]]),
        ("constant", [[0.05] * 4, [0.05, 0, 0, 0]]),
    ],
)
def test_token_weights(aggregation, expected):
    weights = token_weights(MASK, aggregation, UpdateTotals(tokens=5, sequences=2, max_tokens=10))
    assert weights.flatten().tolist() == pytest.approx([*expected[0], *expected[1]])


def test_the_loss_marks_the_clipped_tokens_of_the_pass():
    torch.manual_seed(0)
    old = -torch.rand(6, 40) * 3
    new = (old + 0.4 * torch.randn(6, 40)).requires_grad_()
    advantages, token_mask = torch.randn(6, 40), (torch.rand(6, 40) < 0.7).float()
    mask, ratio = torch.ones(6, 40), (new - old).detach().exp()
    expected = ((advantages > 0) & (ratio > 1.24)) | ((advantages < 0) & (ratio < 0.8))
    inputs = LossInputs(new, old, None, old, advantages, mask, token_mask, UpdateTotals(240, 6))
    output = update_loss(inputs, AlgorithmConfig())
    assert torch.equal(output.clipped, expected * token_mask)
    assert output.clipped.sum() == output.metrics["clipped"] > 20


def test_update_loss_adds_kl_only_inside_the_pass_and_only_in_the_loss():
    logprobs = torch.tensor([[-1.0, -1.0]])
    ref = torch.tensor([[-1.5, -1.5]])
    token_mask = torch.tensor([[1.0, 0.0]])
    zero, mask = torch.zeros(1, 2), torch.ones(1, 2)
    inputs = LossInputs(logprobs, logprobs, ref, logprobs, zero, mask, token_mask, UpdateTotals(2, 1))

    def loss(**settings) -> float:
        return update_loss(inputs, AlgorithmConfig(kl_coef=0.1, **settings)).loss.item()

    assert loss() == pytest.approx(0.1 * 0.5 * (math.exp(-0.5) + 0.5 - 1))
    assert loss(advantage="reinforce_plus_plus") == 0.0


@pytest.mark.parametrize("truncation", [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}])
def test_importance_sampling_is_refused_where_the_engine_renormalises(truncation):
    changes = {f"rollout.{key}": value for key, value in truncation.items()}
    assert apply_overrides(TrainConfig(), changes).algorithm.importance_sampling_cap is None
    with pytest.raises(ConfigError, match="renormalise"):
        apply_overrides(TrainConfig(), {**changes, "algorithm.importance_sampling_cap": 2.0})


def test_truncated_importance_sampling_scales_the_policy_term_and_is_capped():
    old = torch.tensor([[math.log(0.8), math.log(0.3)]])
    rollout = torch.tensor([[math.log(0.2), math.log(0.6)]])  # weights 4 -> 2 and 0.5
    one = torch.ones(1, 2)
    config = AlgorithmConfig(kl_coef=0.0, importance_sampling_cap=2.0)
    inputs = LossInputs(old, old, None, rollout, one, one, one, UpdateTotals(1, 1))
    output = update_loss(inputs, config)
    assert output.loss.item() == pytest.approx(-(2.0 + 0.5))


@pytest.mark.parametrize(("key", "value"), [("top_p", 0.9), ("top_k", 5), ("min_p", 0.1)])
def test_the_engines_logprobs_are_refused_where_it_renormalises(key, value):
    changes = {"optim.old_logprobs": "rollout"}
    assert apply_overrides(TrainConfig(), changes).optim.old_logprobs == "rollout"
    with pytest.raises(ConfigError, match=rf"optim.old_logprobs rollout and rollout.{key} {value:g}"):
        apply_overrides(TrainConfig(), {**changes, f"rollout.{key}": value})


@pytest.mark.parametrize(
    "other",
    [
        {"algorithm.importance_sampling_cap": 2.0, "algorithm.importance_sampling_level": "sequence"},
        {"algorithm.token_filter": "high_entropy"},
        {"diagnostics.every_steps": 5},
    ],
)
def test_the_engines_logprobs_are_refused_where_the_policy_of_before_is_asked_for_more(other):
    with pytest.raises(ConfigError, match=r"recompute|level to token"):
        apply_overrides(TrainConfig(), {"optim.old_logprobs": "rollout", **other})


def test_a_loss_against_the_engine_is_held_by_the_cap():
    old = torch.tensor([[math.log(0.2), math.log(0.6)]])
    now = torch.tensor([[math.log(0.8), math.log(0.3)]], requires_grad=True)  # ratios 4 and 0.5
    one = torch.ones(1, 2)
    config = AlgorithmConfig(kl_coef=0.0, importance_sampling_cap=2.0)
    inputs = LossInputs(now, old, None, None, -one, one, one, UpdateTotals(1, 1))
    output = update_loss(inputs, config)
    assert output.loss.item() == pytest.approx(2.0 + 0.8)  # -A r is 4, cut to 2; 0.5 is clipped to 0.8
    output.loss.backward()
    assert now.grad.tolist() == [pytest.approx([2.0, 0.0])]
