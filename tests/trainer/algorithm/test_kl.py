import math

import pytest
import torch

from trainer.algorithm.kl import kl_loss, kl_penalty
from trainer.config.algorithm import AlgorithmConfig


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


@pytest.mark.parametrize(
    ("kind", "value", "gradient"),
    [
        ("plain", 0.125, 0.5),
        # 0.125 r and (0.5 + 0.125) r with r = pi / pi_old = exp(0.2): the product rule
        ("unbiased", 0.125 * math.exp(0.2), 0.625 * math.exp(0.2)),
    ],
)
def test_the_unbiased_gradient_is_that_of_the_penalty_times_the_ratio(kind, value, gradient):
    logprobs = torch.tensor([-1.0], requires_grad=True)
    config = AlgorithmConfig(kl_estimator="k2", kl_gradient=kind)
    loss = kl_loss(logprobs, torch.tensor([-1.2]), torch.tensor([-1.5]), config)
    loss.backward()
    assert (loss.item(), logprobs.grad.item()) == pytest.approx((value, gradient))


def test_the_ratio_of_the_unbiased_gradient_does_not_overflow():
    config = AlgorithmConfig(kl_estimator="k2", kl_gradient="unbiased")
    loss = kl_loss(torch.tensor([0.0]), torch.tensor([-200.0]), torch.tensor([-1.0]), config)
    assert loss.item() == pytest.approx(0.5 * math.exp(20), rel=1e-5)
