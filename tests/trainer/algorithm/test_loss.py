import math

import pytest
import torch

from trainer.algorithm.engine_correction import importance_weights
from trainer.algorithm.kl import kl_penalty
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


def loss_of(ratio: float, advantage: float, dual_clip: float = 3.0):
    old = torch.tensor([[-1.0]])
    logprobs = (old + math.log(ratio)).requires_grad_()
    one = torch.ones(1, 1)
    inputs = LossInputs(logprobs, old, None, old, torch.tensor([[advantage]]), one, one, UpdateTotals(1, 1))
    output = update_loss(inputs, AlgorithmConfig(kl_coef=0.0, dual_clip=dual_clip))
    output.loss.backward()
    assert logprobs.grad is not None
    return output.loss.item(), logprobs.grad.item(), {k: float(v) for k, v in output.metrics.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped", "dual_clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, 0, 0),
        (1.5, 2.0, -2.48, 0.0, 1, 0),  # clipped at 1.24
        (0.5, 2.0, -1.0, -1.0, 0, 0),  # a falling good token is not clipped
        (0.5, -2.0, 1.6, 0.0, 1, 0),  # clipped at 0.8
        (1.5, -2.0, 3.0, 3.0, 0, 0),
        (5.0, -2.0, 6.0, 0.0, 0, 1),  # dual clip at 3 * 2
    ],
)
def test_clipping_by_hand(ratio, advantage, loss, gradient, clipped, dual_clipped):
    value, grad, metrics = loss_of(ratio, advantage)
    assert value == pytest.approx(loss, rel=1e-5)
    assert grad == pytest.approx(gradient, abs=1e-5)
    assert metrics["clipped"] == clipped
    assert metrics["dual_clipped"] == dual_clipped


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


def test_kl_estimators_by_hand():
    logprobs, ref = torch.tensor([-1.0]), torch.tensor([-1.5])
    assert kl_penalty(logprobs, ref, AlgorithmConfig(kl_estimator="k1")).item() == pytest.approx(0.5)
    assert kl_penalty(logprobs, ref, AlgorithmConfig(kl_estimator="k2")).item() == pytest.approx(0.125)
    assert kl_penalty(logprobs, ref, AlgorithmConfig(kl_estimator="k3")).item() == pytest.approx(
        math.exp(-0.5) + 0.5 - 1
    )


@pytest.mark.parametrize(
    ("log_ratio_clamp", "far_below", "far_above"),
    [
        (5.0, 10.0, math.exp(-5) + 4),  # the published code of AR and Lopti
        (20.0, 10.0, 10.0),
    ],
)
def test_k3_is_bounded(log_ratio_clamp, far_below, far_above):
    config = AlgorithmConfig(kl_log_ratio_clamp=log_ratio_clamp)
    assert kl_penalty(torch.tensor([-20.0]), torch.tensor([0.0]), config).item() == far_below
    assert kl_penalty(torch.tensor([0.0]), torch.tensor([-20.0]), config).item() == pytest.approx(far_above)


def test_k3_without_bounds_is_the_formula():
    config = AlgorithmConfig(kl_log_ratio_clamp=None, kl_value_clamp=None)
    assert kl_penalty(torch.tensor([-8.0]), torch.tensor([0.0]), config).item() == pytest.approx(math.exp(8) - 9)


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


def test_sequence_level_importance_sampling_drops_completions_above_the_cap():
    # Ratios per token: 2 and 0.5 (product 1), 2 and 1.5 (3, above the cap), 0.5 and padding (0.5).
    log_ratio = torch.tensor([[2.0, 0.5], [2.0, 1.5], [0.5, 1.0]]).log()
    old = torch.tensor([[-1.0, -2.0], [-0.5, -0.1], [-3.0, 0.0]])
    config = AlgorithmConfig(importance_sampling_cap=2.0, importance_sampling_level="sequence")
    weights = importance_weights(old, old - log_ratio, torch.ones(3, 2), config)
    assert weights is not None
    assert weights.flatten().tolist() == pytest.approx([1, 1, 0, 0, 0.5, 0.5])


def test_importance_sampling_off_has_no_weights():
    assert importance_weights(torch.zeros(1, 1), torch.ones(1, 1), torch.ones(1, 1), AlgorithmConfig()) is None


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
