import math

import pytest
import torch

from tests.trainer.algorithm.batches import loss_inputs
from trainer.algorithm.loss import kl_penalty, update_loss
from trainer.config.algorithm import AlgorithmConfig
from trainer.rules.interface import UpdateTotals


def test_the_loss_marks_the_clipped_tokens_of_the_pass():
    torch.manual_seed(0)
    old = -torch.rand(6, 40) * 3
    new = (old + 0.4 * torch.randn(6, 40)).requires_grad_()
    advantages = torch.randn(6, 40)
    token_mask = (torch.rand(6, 40) < 0.7).float()
    mask = torch.ones(6, 40)
    ratio = (new - old).detach().exp()
    token_mask.view(-1)[ratio.argmax()] = 0
    expected = ((advantages > 0) & (ratio > 1.24)) | ((advantages < 0) & (ratio < 0.8))
    inputs = loss_inputs(
        new, old, advantages, UpdateTotals(240, 6), completion_mask=mask, token_mask=token_mask
    )
    output = update_loss(inputs, AlgorithmConfig(loss={"dual_clip": 1.3}))
    assert torch.equal(output.clipped, expected * token_mask)
    assert output.clipped.sum() == output.metrics["clipped"] > 20
    dual_clipped = (advantages < 0) & (ratio > 1.3) & token_mask.bool()
    assert output.metrics["dual_clipped"] == dual_clipped.sum() > 5
    assert output.metrics["tokens"] == token_mask.sum() < mask.sum()
    inside = token_mask.bool()
    assert output.metrics["approx_kl"].item() == pytest.approx(
        -ratio.log()[inside].sum().item(), rel=1e-4
    )
    assert (
        output.metrics["ratio_max"].item()
        == pytest.approx(ratio[inside].max().item())
        != ratio.max().item()
    )


def test_update_loss_adds_kl_only_inside_the_pass_and_only_in_the_loss():
    logprobs = torch.tensor([[-1.0, -1.0]])
    ref = torch.tensor([[-1.5, -1.5]])
    token_mask = torch.tensor([[1.0, 0.0]])
    zero = torch.zeros(1, 2)
    mask = torch.ones(1, 2)
    inputs = loss_inputs(
        logprobs,
        logprobs,
        zero,
        UpdateTotals(2, 1),
        ref_logprobs=ref,
        completion_mask=mask,
        token_mask=token_mask,
    )

    def loss(**settings):
        return update_loss(inputs, AlgorithmConfig(kl_coef=0.1, **settings)).loss.item()

    assert loss() == pytest.approx(0.1 * 0.5 * (math.exp(-0.5) + 0.5 - 1))
    # of one completion
    assert loss(loss_aggregation="seq_mean_token_sum") == pytest.approx(2 * loss())
    assert loss(advantage="reinforce_plus_plus") == 0.0


def test_truncated_importance_sampling_scales_and_caps_the_loss():
    old = torch.tensor([[math.log(0.8), math.log(0.3)]])
    rollout = torch.tensor([[math.log(0.2), math.log(0.6)]])  # weights 4 -> 2 and 0.5
    advantages = torch.ones(1, 2)
    config = AlgorithmConfig(kl_coef=0.0, rollout_correction={"cap": 2.0})
    inputs = loss_inputs(old, old, advantages, UpdateTotals(1, 1), rollout_logprobs=rollout)
    output = update_loss(inputs, config)
    assert output.loss.item() == pytest.approx(-(2.0 + 0.5))


def test_the_bonus_is_weighted_like_the_loss_over_the_passs_tokens():
    entropies = torch.tensor([[2.0, 3.0]], requires_grad=True)
    zeros = torch.zeros(1, 2)
    inputs = loss_inputs(
        zeros,
        zeros,
        zeros,
        UpdateTotals(2, 1),
        entropies=entropies,
        token_mask=torch.tensor([[1.0, 0.0]]),
    )
    output = update_loss(inputs, AlgorithmConfig(kl_coef=0.0, entropy_coef=0.1))
    output.loss.backward()
    assert output.loss.item() == pytest.approx(-0.1 * 2.0 / 2)
    assert entropies.grad.tolist() == [[pytest.approx(-0.05), 0.0]]


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
    assert kl_penalty(torch.tensor([0.0]), torch.tensor([-20.0]), config).item() == pytest.approx(
        far_above
    )


@pytest.mark.parametrize(
    "penalty",
    [
        {"kl_coef": 0.1, "kl_estimator": "k3"},
        {"kl_coef": 0.1, "kl_estimator": "k3", "kl_log_ratio_clamp": None},
        {"kl_coef": 0.1, "kl_estimator": "k2"},
        {"kl_coef": 0.1, "kl_importance_ratio": True},
        {"kl_coef": 0.0, "log_ratio_coef": 0.1},
    ],
)
def test_a_penalty_of_a_rounding_error_has_no_gradient(penalty):
    old = torch.linspace(-3, -0.1, 12).view(3, 4)

    def gradient(error):
        logprobs = (old + error * torch.tensor([1.0, -1.0, 0.5, 0.0])).requires_grad_()
        inputs = loss_inputs(
            logprobs, old, torch.zeros(3, 4), UpdateTotals(12, 3), ref_logprobs=old
        )
        update_loss(inputs, AlgorithmConfig(**penalty)).loss.backward()
        return logprobs.grad

    assert gradient(2e-6).abs().max() == 0.0
    assert gradient(1e-3)[:, :3].abs().min() > 1e-6
